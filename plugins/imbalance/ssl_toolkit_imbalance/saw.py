"""Smoothed adaptive weighting (Lai et al., ICML 2022, PMLR 162)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ssl_toolkit import AddOn, Batch, Context, Metric, Options, TaskInfo, option
from ssl_toolkit_imbalance.pool import steps_between


class SAW(AddOn):
    """Weigh the pseudo labels of each class by how rarely the pool is predicted as this class.

    USB's code weighs the labeled images of each class by their counts too; here they have weight 1.

    The teacher predicts the pool several times during the run. Weights are the inverse of
    the smoothed count of a class, its effective number of images.
    """

    class Config(Options):
        """Options of SAW."""

        beta: float | None = option(
            None,
            ge=0,
            lt=1,
            help="smoothing: 0 for equal weights, near 1 for inverse counts; null: 1 - 1/n for a "
            "mean of n images of a class",
            source="USB's code; Cui et al., CVPR 2019: 0.9 to 0.9999",
        )
        updates: int = option(
            20,
            ge=1,
            help="number of times that the pool is predicted during the run",
            source="this project; USB's code: once per epoch",
        )

    metrics: ClassVar[tuple[Metric, ...]] = ()
    config: Config
    class_weights: Tensor
    """(C,), with mean 1; ones before the first prediction of the pool."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("class_weights", torch.ones(task.num_classes))

    @property
    def scan_every(self) -> int:
        """Return the steps between two predictions of the pool."""
        return steps_between(self.config.updates, self.task)

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
