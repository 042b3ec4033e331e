"""A training step as a module: the algorithm, its `Context`, and the total loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.random_orders import seeded_generator
from ssl_toolkit.engine.step_checks import check_output
from ssl_toolkit.interfaces import Algorithm, Batch, Context, ForwardOutput, StepOutput
from ssl_toolkit.models.classifier import Classifier, hold_statistics, in_eval_mode, in_mode
from ssl_toolkit.models.predictor import Predictor, by_path
from ssl_toolkit.ops import at_least_float32


class EngineContext(Context):
    """The context of one step.

    Args:
        classifier: the live model, in train mode.
        teacher: the averaged model, or the live one where there is no average.
        step: optimizer steps already done.
        max_steps: optimizer steps of the run.
        seed: the seed of the run.
        number: the batch's number (it differs from the step under gradient accumulation).
        class_shares: (C,) as `Context.class_shares`.
        pool_mask: (unlabeled images,) as `Context.pool_mask`.
        processes: the processes that share the batch; None for this one alone.
    """

    def __init__(
        self,
        classifier: Classifier,
        teacher: Predictor,
        *,
        step: int,
        max_steps: int,
        seed: int,
        number: int,
        class_shares: Tensor,
        pool_mask: Tensor,
        processes: ProcessGroup | None = None,
    ) -> None:
        self._classifier = classifier
        self._predictor = teacher
        self._teacher = teacher.classifier
        self.step = step
        self.max_steps = max_steps
        self.class_shares = class_shares
        self.pool_mask = pool_mask
        self._processes = processes or ProcessGroup()
        self.processes: int = self._processes.size
        self.generator: torch.Generator = seeded_generator(seed, number, "algorithm")

    def forward(
        self, images: Tensor, *, update_statistics: bool = True, eval_mode: bool = False
    ) -> ForwardOutput:
        """As `Context.forward`."""
        _check_images(images)
        if eval_mode:
            # Copies: a later forward in train mode would change them before the backward pass.
            buffers = {name: value.clone() for name, value in self._classifier.named_buffers()}
            with in_eval_mode(self._classifier):
                return functional_call(self._classifier, buffers, (images,))  # type: ignore[no-any-return]
        holding = nullcontext() if update_statistics else hold_statistics(self._classifier)
        with holding:
            return self._classifier(images)  # type: ignore[no-any-return]

    def head(self, features: Tensor) -> Tensor:
        """As `Context.head`."""
        return self._classifier.head(features)  # type: ignore[no-any-return]

    def teacher_forward(self, images: Tensor, *, train_mode: bool = False) -> ForwardOutput:
        """As `Context.teacher_forward`."""
        _check_images(images)
        with (
            torch.no_grad(),
            in_mode(self._teacher, training=train_mode),
            hold_statistics(self._teacher),
        ):
            features, logits = self._teacher(images)
        return ForwardOutput(at_least_float32(features), at_least_float32(logits))

    @torch.no_grad()
    def teacher(self, images: Tensor, *, train_mode: bool = False) -> Tensor:
        """As `Context.teacher`."""
        output = self.teacher_forward(images, train_mode=train_mode)
        return at_least_float32(self._predictor.logits(output))

    @torch.no_grad()
    def prediction(
        self, predict: Callable[[ForwardOutput], Tensor], output: ForwardOutput
    ) -> Tensor:
        """As `Context.prediction`."""
        return at_least_float32(self._predictor.logits(output, predict))

    def averaged(self, name: str) -> Callable[..., Any]:
        """As `Context.averaged`."""
        modules = by_path(self._predictor.averages)
        if name not in modules:
            raise ValueError(f"{name!r} is not in averaged_modules ({', '.join(modules)})")

        @torch.no_grad()
        def call(*args: Any, **kwargs: Any) -> Any:
            with in_eval_mode(modules[name]):
                output = modules[name](*args, **kwargs)
            if isinstance(output, ForwardOutput):
                return ForwardOutput(*map(at_least_float32, output))
            return at_least_float32(output)

        return call

    def input_gradient(self, images: Tensor, loss: Callable[[ForwardOutput], Tensor]) -> Tensor:
        """As `Context.input_gradient`."""
        images = images.detach().clone().requires_grad_()
        # Float32 without autocast: in half precision these small gradients would be lost.
        with torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
            value = loss(self.forward(images, update_statistics=False))
        (gradient,) = torch.autograd.grad(value, images)
        return at_least_float32(gradient)

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """As `Context.all_reduce_sum`."""
        return self._processes.all_reduce_sum(value)

    def all_gather(self, value: Tensor, dim: int = 0) -> Tensor:
        """As `Context.all_gather`."""
        return self._processes.all_gather(value, dim)

    def local_shard(self, value: Tensor, dim: int = 0) -> Tensor:
        """As `Context.local_shard`."""
        return self._processes.local_shard(value, dim)


def _check_images(images: Tensor) -> None:
    """Refuse what a model would refuse with words about its layers.

    Raises:
        ValueError: in a line for the author of the algorithm.
    """
    if images.ndim not in (2, 4):  # features of a frozen backbone are (N, D)
        stack = images.ndim in (3, 5)
        more = "; a view is one of the stack, such as batch.labeled_weak[0]" * stack
        raise ValueError(f"images must be (N, 3, H, W), got {tuple(images.shape)}{more}")
    if not len(images):
        raise ValueError("there are no images; a view that views() doesn't ask for has none")


class StepModule(nn.Module):
    """One step as a module, for DistributedDataParallel to wrap."""

    def __init__(self, classifier: Classifier, algorithm: Algorithm) -> None:
        super().__init__()
        self.classifier = classifier
        self.algorithm = algorithm

    def forward(self, batch: Batch, context: EngineContext) -> tuple[Tensor, StepOutput]:
        """Return the total loss and the output of the algorithm."""
        output = self.algorithm.step(batch, context)
        check_output(output, batch, self.classifier.num_classes)
        return total_loss(output), output


def total_loss(output: StepOutput) -> Tensor:
    """Return the sum of weight times value over the losses, in float32 or wider."""
    return torch.stack([loss.weight * loss.value for loss in output.losses.values()]).sum()
