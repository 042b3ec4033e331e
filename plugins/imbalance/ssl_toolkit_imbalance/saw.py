"""Smoothed adaptive weighting (Lai et al., ICML 2022, PMLR 162)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ssl_toolkit import AddOn, Batch, Context, Metric, Options, TaskInfo, option
from ssl_toolkit_imbalance.pool import PoolOptions


class SAW(AddOn):
    """Weigh pseudo labels by how rarely the pool is predicted as their class, labels by how rare.

    The teacher predicts the pool several times during the run. Weights are the inverse of
    the smoothed count of a class, its effective number of images.
    """

    class Config(PoolOptions):
        """Options of SAW."""

        beta: float | None = option(
            None,
            ge=0,
            lt=1,
            help="smoothing: 0 for equal weights, near 1 for inverse counts; null: 1 - 1/n for a "
            "mean of n images of a class",
            source="USB's code; Cui et al., CVPR 2019: 0.9 to 0.9999",
        )
        weigh_labels: bool = option(
            True,
            help="weigh the labeled images too, by the numbers of labels",
            source="authors' code and USB's code",
        )

    metrics: ClassVar[tuple[Metric, ...]] = ()
    config: Config
    class_weights: Tensor
    """(C,) of pseudo labels, with mean 1; ones before the first prediction of the pool."""
    label_weights: Tensor
    """(C,) of labels, with mean 1."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("class_weights", torch.ones(task.num_classes))
        counts = torch.tensor(task.label_counts, dtype=torch.float64)
        self.register_buffer("label_weights", smoothed_weights(counts, self.config.beta).float())

    @property
    def scan_every(self) -> int:
        """Return the steps between two predictions of the pool."""
        return self.config.interval(self.task)

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Count the predicted classes of the pool, from images (n, 3, H, W)."""
        counts = torch.zeros_like(self.class_weights)
        for _, images in unlabeled:
            predicted = ctx.teacher(images).argmax(dim=-1)
            counts.index_add_(0, predicted, torch.ones_like(predicted, dtype=counts.dtype))
        if ctx.step:  # an untrained model predicts a single class
            self.class_weights.copy_(smoothed_weights(counts, self.config.beta))

    def weigh(self, probs: Tensor, mask: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return the mask (U,) multiplied by the weight of the most probable class."""
        return mask * self.class_weights[probs.argmax(dim=-1)]

    def weigh_labels(self, losses: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return the losses (B,) multiplied by the weights of their labels."""
        return losses * self.label_weights[batch.labels] if self.config.weigh_labels else losses


def smoothed_weights(counts: Tensor, beta: float | None) -> Tensor:
    """Return the inverse of the effective numbers (1 - beta^n) / (1 - beta), with mean 1.

    Args:
        counts: (C,) numbers of images.
        beta: In [0, 1); None for 1 - 1/n with the mean n of the counts, at least 1.

    Source: Cui et al., Class-Balanced Loss (CVPR 2019, arXiv:1901.05555).

    >>> smoothed_weights(torch.tensor([1.0, 3.0]), 0)
    tensor([1., 1.])
    """
    if beta is None:
        beta = 1 - 1 / max(float(counts.mean()), 1.0)
    if not beta:
        return torch.ones_like(counts)
    weights = -1 / torch.expm1(counts.clamp_min(1) * math.log(beta))
    return weights / weights.mean()
