"""A toy network, a context and batches for single steps of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit import Algorithm, Batch, Context, ForwardOutput, StepOutput, TaskInfo
from ssl_toolkit.models.classifier import hold_statistics, in_mode

CLASSES, SIDE = 4, 6
LABELED, POOL = 8, 40
Call = tuple[str, int, bool]


class Net(nn.Module):
    def __init__(self, normalized: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm: nn.Module = nn.BatchNorm2d(8) if normalized else nn.Identity()
        self.classifier = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> ForwardOutput:
        features = F.leaky_relu(self.norm(self.conv(images))).mean(dim=(2, 3))
        return ForwardOutput(features, self.classifier(features))


class FakeContext(Context):
    """A context with a live network and a teacher of other weights, which records its calls."""

    def __init__(self, step: int = 50, seed: int = 3, normalized: bool = True) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.live, self.teacher_net = Net(normalized), Net(normalized).eval()
        self.teacher_net.requires_grad_(False)
        # Some pseudo labels are above the threshold, and some below.
        self.teacher_net.classifier.weight.mul_(120)
        self.step, self.max_steps = step, 100
        self.generator = torch.Generator().manual_seed(seed)
        self.pool_mask = torch.ones(POOL, dtype=torch.bool)
        self.calls: list[Call] = []
        self.averages: dict[str, nn.Module] = {}

    def forward(
        self, images: Tensor, *, update_statistics: bool = True, eval_mode: bool = False
    ) -> ForwardOutput:
        self.calls.append(("forward", len(images), update_statistics))
        if eval_mode:
            self.live.eval()
            prediction = self.live(images)
            self.live.train()
            return prediction
        if update_statistics:
            return self.live(images)
        self.live.norm.track_running_stats = False
        prediction = self.live(images)
        self.live.norm.track_running_stats = True
        return prediction

    def head(self, features: Tensor) -> Tensor:
        return self.live.classifier(features)

    @torch.no_grad()
    def teacher_forward(self, images: Tensor, *, train_mode: bool = False) -> ForwardOutput:
        self.calls.append(("teacher", len(images), False))
        with in_mode(self.teacher_net, training=train_mode), hold_statistics(self.teacher_net):
            return self.teacher_net(images)

    def averaged(self, name: str) -> Callable[..., Tensor]:
        return torch.no_grad()(self.averages[name])

    def input_gradient(self, images: Tensor, loss: Callable[[ForwardOutput], Tensor]) -> Tensor:
        images = images.detach().clone().requires_grad_()
        value = loss(self.forward(images, update_statistics=False))
        (gradient,) = torch.autograd.grad(value, images)
        return gradient

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        return value


def build(kind: type[Algorithm], **options: Any) -> Algorithm:
    task = TaskInfo(CLASSES, 8, (2,) * CLASSES, POOL, 100)
    return kind(kind.Config(**options), task)


def make_batch(algorithm: Algorithm, size: int = 4, seed: int = 1) -> Batch:
    """Return views with a different brightness per image, so that predictions differ too."""
    views, generator = algorithm.views(), torch.Generator().manual_seed(seed)

    def stack(count: int, images: int) -> Tensor:
        noise = torch.rand(count, images, 3, SIDE, SIDE, generator=generator)
        return noise * torch.rand(1, images, 3, 1, 1, generator=generator)

    def integers(below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=generator)

    unlabeled = size * views.unlabeled_ratio if views.needs_unlabeled else 0
    return Batch(
        labels=integers(CLASSES, size),
        labeled_indices=integers(LABELED, size),
        labeled_weak=stack(views.labeled_weak, size),
        labeled_strong=stack(views.labeled_strong, size),
        unlabeled_indices=integers(POOL, unlabeled),
        unlabeled_weak=stack(views.unlabeled_weak, unlabeled),
        unlabeled_strong=stack(views.unlabeled_strong, unlabeled),
        unlabeled_labels=integers(CLASSES, unlabeled) if algorithm.uses_hidden_labels else None,
        extra={
            name: stack(view.count, size if view.source == "labeled" else unlabeled)
            for name, view in views.extra.items()
        },
    )


def toy_images() -> tuple[Tensor, Tensor, Tensor]:
    """Return labeled images, their labels and the pool, in float64."""
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(LABELED + POOL, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    images = images * torch.rand(len(images), 3, 1, 1, generator=generator, dtype=torch.float64)
    return images[:LABELED], torch.arange(LABELED) % CLASSES, images[LABELED:]


def objective(output: StepOutput) -> Tensor:
    return torch.stack([loss.weight * loss.value for loss in output.losses.values()]).sum()


def run(kind: type[Algorithm], ctx: FakeContext, **options: Any) -> tuple[StepOutput, Batch]:
    algorithm = build(kind, **options)
    batch = make_batch(algorithm)
    return algorithm.step(batch, ctx), batch
