"""The access that `Algorithm.step` has to the model, the teacher and other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class ForwardOutput(NamedTuple):
    """The output of one forward pass."""

    features: Tensor
    """(N, feature_dim)."""
    logits: Tensor
    """(N, C)."""


class Context(ABC):
    """Access to the model, the teacher and other processes from `Algorithm.step`."""

    step: int
    """Number of completed optimizer steps: 0 at the first call."""
    max_steps: int
    processes: int = 1
    """Number of processes that share the batch."""
    generator: torch.Generator
    """CPU generator that only depends on the seed and the step; draw all random numbers from it."""
    class_shares: Tensor
    """(C,) float32 on the device of the run, with sum 1: estimated class distribution of the
    unlabeled pool. The distribution of the labeled images if their counts differ by more than one;
    otherwise an estimate from the predictions of the linear probe, with a pre-trained backbone;
    otherwise that of the labeled images, which is uniform. Equal at every step and in every
    process."""
    pool_mask: Tensor
    """(unlabeled images,) bool on the device of the run: False for images that ``--drop-strangers``
    leaves out at present; under ``soft``, those drawn in at most 1 % of the epochs. Equal in every
    process."""

    @abstractmethod
    def forward(
        self, images: Tensor, *, update_statistics: bool = True, eval_mode: bool = False
    ) -> ForwardOutput:
        """Return the output of the model with gradient, in train mode by default.

        Args:
            images: (N, 3, H, W) in [0, 1]; perturbations may exceed the range slightly.
            update_statistics: False to normalize by the statistics of the batch without updating
                the running statistics of BatchNorm.
            eval_mode: True for a forward in eval mode: no dropout, and normalized by the running
                statistics of BatchNorm, which are not updated.
        """

    def model(self, images: Tensor) -> Tensor:
        """Return the logits (N, C) of images (N, 3, H, W), as in `forward`."""
        return self.forward(images).logits

    def features(self, images: Tensor) -> Tensor:
        """Return the features (N, feature_dim) of images (N, 3, H, W), as in `forward`."""
        return self.forward(images).features

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Return the logits (N, C) of the head for features (N, feature_dim), with gradient.

        `features` followed by `head` equals `model`.
        """

    @abstractmethod
    def teacher_forward(self, images: Tensor, *, train_mode: bool = False) -> ForwardOutput:
        """Return the float32 output of the teacher, without gradient, in eval mode by default.

        The teacher has the EMA weights; with ``ema: false``, the weights of the model. The logits
        are those of its head, before `Algorithm.predict`.

        Args:
            images: (N, 3, H, W) in [0, 1].
            train_mode: True for a forward in train mode: with dropout, and normalized by the
                statistics of the batch without updating the running statistics of BatchNorm.
        """

    def teacher(self, images: Tensor, *, train_mode: bool = False) -> Tensor:
        """Return the logits (N, C) that the teacher predicts, in float32.

        These are the result of `Algorithm.predict` for the output of `teacher_forward`.

        Args:
            images: (N, 3, H, W) in [0, 1].
            train_mode: As in `teacher_forward`.
        """
        return self.teacher_forward(images, train_mode=train_mode).logits

    def prediction(
        self, predict: Callable[[ForwardOutput], Tensor], output: ForwardOutput
    ) -> Tensor:
        """Return the result of `predict` of an algorithm as `teacher` calls it, without gradient.

        Args:
            predict: `Algorithm.predict` of the algorithm of the run, or of one with add-ons.
            output: Output of `teacher_forward`.
        """
        with torch.no_grad():
            return predict(output)

    @abstractmethod
    def averaged(self, name: str) -> Callable[..., Any]:
        """Return the average of one of `Algorithm.averaged_modules`, such as ``"projector"``.

        It is called like the module, which returns a tensor or a `ForwardOutput`, in eval mode and
        without gradient; the result is float32. With ``ema: false``, it is the module itself.

        Raises:
            ValueError: The name is not in `Algorithm.averaged_modules`.
        """

    def view_logits(self, views: Tensor, by: Literal["teacher", "model"] = "teacher") -> Tensor:
        """Return the logits of several views per image, without gradient, for pseudo labels.

        Args:
            views: (K, U, 3, H, W), such as ``batch.unlabeled_weak``.
            by: ``teacher`` for one forward of all views in eval mode; ``model`` for one forward
                per view in train mode, normalized by the statistics of that view without updating
                the running statistics of BatchNorm, as in MixMatch.

        Returns:
            Logits (K, U, C).
        """
        if by == "teacher":
            return self.teacher(views.flatten(0, 1)).reshape(*views.shape[:2], -1)
        with torch.no_grad():
            logits = [self.forward(view, update_statistics=False).logits for view in views]
        return torch.stack(logits)

    def refine(self, probs: Tensor) -> Tensor:
        """Return the probabilities to make pseudo labels of; `probs` itself without add-ons.

        An algorithm that declares ``refine`` in `Algorithm.addon_hooks` calls it once per step,
        before it sharpens the probabilities or selects by confidence.

        Args:
            probs: (U, C) probabilities of the unlabeled images, without gradient.
        """
        return probs

    def weigh(self, probs: Tensor, mask: Tensor) -> Tensor:
        """Return the weights of pseudo labels in the loss (U,); `mask` itself without add-ons.

        An algorithm that declares ``weigh`` in `Algorithm.addon_hooks` calls it once per step, and
        multiplies the losses of the images by it. `PseudoLabels.weighted` reports it.

        Args:
            probs: (U, C) probabilities of the pseudo labels, without gradient.
            mask: (U,) bool: the pseudo labels that the algorithm uses; or its weights.
        """
        return mask

    def weigh_labels(self, losses: Tensor) -> Tensor:
        """Return the losses of the labeled images (B,), weighted; `losses` without add-ons.

        An algorithm that declares ``weigh_labels`` in `Algorithm.addon_hooks` calls it once per
        step, before it averages the losses.

        Args:
            losses: (B,) with gradient, in the order of `Batch.labels`.
        """
        return losses

    @abstractmethod
    def input_gradient(self, images: Tensor, loss: Callable[[ForwardOutput], Tensor]) -> Tensor:
        """Return the gradient of a loss with respect to the images, as in VAT.

        The forward is in train mode and float32. It updates neither the running statistics of
        BatchNorm nor the gradients of the parameters.

        Args:
            images: (N, 3, H, W); need not require a gradient.
            loss: Maps the output of the model to a 0-dim tensor.

        Returns:
            Gradient (N, 3, H, W), float32, detached.
        """

    @abstractmethod
    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, without gradient.

        Use it for running counts and thresholds, which must be equal in every process. With one
        process, return the tensor itself.

        Args:
            value: Tensor of the same shape in each process.
        """

    def all_gather(self, value: Tensor, dim: int = 0) -> Tensor:
        """Return the concatenation of a tensor over all processes, with gradient.

        The gradient of a shard is the sum over all processes, so that a loss of the whole batch
        trains as in a single process. `generator` is equal in every process, so that random
        numbers for the whole batch agree.

        Args:
            value: Local shard (n, ...), of the same shape in each process.
            dim: Dimension to concatenate.

        Returns:
            Tensor (processes · n, ...) in the order of a single process; with one process, `value`
            itself.
        """
        return value

    def local_shard(self, value: Tensor, dim: int = 0) -> Tensor:
        """Return the local shard of a tensor that every process has; the inverse of `all_gather`.

        Args:
            value: Tensor (processes · n, ...).
            dim: Dimension to split.

        Returns:
            Shard (n, ...); with one process, `value` itself.
        """
        return value
