"""DASO (Oh, Kim and Kweon, CVPR 2022, arXiv:2106.05682)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import AddOn, Batch, Context, Loss, Metric, Options, StepOutput, TaskInfo, option
from ssl_toolkit.ops import at_least_float32, soft_cross_entropy

FAR = -1e4
"""Similarity to a class without a prototype, over the temperature."""


class DASO(AddOn):
    """Blend each pseudo label with one by similarity to class prototypes.

    Pseudo labels of the head are biased to frequent classes, and those by similarity to rare ones.
    Pseudo labels of the classes that are predicted most are replaced most. A prototype is the mean
    of a queue of features of labeled images by the averaged model. The weak and the strong
    unlabeled views have a forward pass each, in train mode without updating the running statistics
    of BatchNorm, and the weak labeled ones one by the averaged model.
    """

    class Config(Options):
        """Options of DASO."""

        queue_size: int = option(
            256, ge=1, help="features in the queue of each class", source="authors' code: 256"
        )
        temperature: float = option(
            0.05, gt=0, help="temperature of the similarities", source="authors' code: 0.05"
        )
        distribution_temperature: float = option(
            1.5,
            gt=0,
            help="temperature of the shares of the pseudo labels; higher blends all classes alike",
            source="authors' code: 1.5 or 0.3, by data set",
        )
        window: int = option(
            100,
            ge=1,
            in_steps=True,
            help="steps over which pseudo labels are counted",
            source="authors' code: 100",
        )
        warmup_fraction: float = option(
            0.3,
            ge=0,
            le=1,
            help="share of the run before pseudo labels are blended",
            source="this project, for short runs; authors' code: 5,000 of 250,000 steps",
        )
        weight: float = option(
            0.1,
            ge=0,
            help="weight of the semantic alignment loss; 0 for none",
            source="this project, for short runs; authors' code: 1",
        )

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss.alignment", "Semantic alignment", "Loss of the similarities to prototypes."),
    )
    config: Config
    queue: Tensor
    """(C, queue size, D), features of labeled images; zeros before the first."""
    pushed: Tensor
    """(C,) int64, number of features pushed to each queue so far."""
    counts: Tensor
    """(C,), number of pseudo labels of each class in this window."""
    shares: Tensor
    """(C,), shares of the pseudo labels in the last window; zeros before its end."""
    counted: Tensor
    """(), number of batches in this window."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        classes, size = task.num_classes, self.config.queue_size
        self.register_buffer("queue", torch.zeros(classes, size, task.feature_dim))
        self.register_buffer("pushed", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("counts", torch.zeros(classes))
        self.register_buffer("shares", torch.zeros(classes))
        self.register_buffer("counted", torch.zeros((), dtype=torch.int64))
        self._semantic: Tensor | None = None  # from `refine` to `losses` of the same step

    @property
    def warmup_steps(self) -> int:
        """Number of steps without blending."""
        return round(self.config.warmup_fraction * self.task.max_steps)

    def refine(self, probs: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return (1 - v) · prediction + v · similarity, where v depends on the predicted class."""
        probs = at_least_float32(probs)
        if ctx.step >= self.warmup_steps:
            self._semantic = self._by_similarity(batch.unlabeled_weak[0], ctx)
            rates = (self.shares / self.shares.max().clamp_min(1e-12)) ** (
                1 / self.config.distribution_temperature
            )
            share = torch.where(self._ready, rates, 0).to(probs)[probs.argmax(dim=-1), None]
            probs = (1 - share) * probs + share * self._semantic.to(probs)
        one_hot = F.one_hot(probs.argmax(dim=-1), self.task.num_classes)
        self.counts += ctx.all_reduce_sum(one_hot.to(self.counts).sum(dim=0))
        return probs

    def losses(self, batch: Batch, ctx: Context, output: StepOutput) -> Mapping[str, Loss]:
        """Return the semantic alignment loss of the first strong view; fill the queues."""
        losses = {}
        if self._semantic is not None and self.config.weight and len(batch.unlabeled_strong):
            features = ctx.forward(batch.unlabeled_strong[0], update_statistics=False).features
            loss = soft_cross_entropy(self._similarities(features), self._semantic).mean()
            # A mean over the batch times 0 while a class has no feature yet.
            losses["alignment"] = Loss(torch.where(self._ready, loss, 0 * loss), self.config.weight)
        self._semantic = None
        self._end_of_step()
        features = ctx.teacher_forward(batch.labeled_weak[0]).features
        self._push(ctx.all_gather(features.detach()), ctx.all_gather(batch.labels))
        return losses

    @property
    def _ready(self) -> Tensor:
        """True if every class has a feature."""
        return (self.pushed > 0).all()

    @torch.no_grad()
    def _by_similarity(self, images: Tensor, ctx: Context) -> Tensor:
        """Return the semantic pseudo labels (U, C)."""
        features = ctx.forward(images, update_statistics=False).features
        return self._similarities(features).softmax(dim=-1)

    def _similarities(self, features: Tensor) -> Tensor:
        """Return the cosines (n, C) to the prototypes, over the temperature."""
        features = F.normalize(at_least_float32(features))
        sums = self.queue.sum(dim=1)  # empty places are 0, and only the direction matters
        with torch.autocast(features.device.type, enabled=False):
            cosines = features @ F.normalize(sums).to(features).T
        return (cosines / self.config.temperature).masked_fill(self.pushed == 0, FAR)

    def _push(self, features: Tensor, labels: Tensor) -> None:
        """Replace the oldest features of the queues by those (n, D) of the whole batch."""
        classes, size, dimension = self.queue.shape
        same = labels[:, None] == labels
        before = same.tril(-1).sum(dim=1)  # earlier images of the class in the batch
        after = same.triu(1).sum(dim=1)
        places = labels * size + (self.pushed[labels] + before) % size
        # No place is written twice, which would leave open which value it gets.
        places = torch.where(after < size, places, classes * size)
        flat = torch.cat([self.queue.flatten(0, 1), self.queue.new_zeros(1, dimension)])
        flat[places] = features.to(flat)
        self.queue.copy_(flat[:-1].view_as(self.queue))
        self.pushed += F.one_hot(labels, classes).sum(dim=0)

    def _end_of_step(self) -> None:
        """Take over the counts at the end of a window."""
        self.counted += 1
        ends = (self.counted >= self.config.window) & (self.counts.sum() > 0)
        shares = self.counts / self.counts.sum().clamp_min(1)
        self.shares.copy_(torch.where(ends, shares, self.shares))
        self.counts.copy_(torch.where(ends, 0, self.counts))
        self.counted.copy_(torch.where(ends, 0, self.counted))
