"""Adsh: adaptive thresholding for uneven classes (Guo and Li, ICML 2022, PMLR 162)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ssl_toolkit import AddOn, Batch, Context, Metric, Options, TaskInfo, option
from ssl_toolkit.ops import at_least_float32
from ssl_toolkit_imbalance.pool import PoolOptions


class Adsh(AddOn):
    """Use an own threshold for each class, which selects the same share of each.

    That share is the part of the images predicted as the most frequent class whose confidence
    reaches the base threshold, above which no threshold rises. The teacher predicts the pool
    several times during the run. The pseudo label is the class whose probability is highest
    relative to its threshold.
    """

    class Config(PoolOptions):
        """Options of Adsh."""

        confidence_threshold: float = option(
            0.95,
            gt=0,
            le=1,
            help="threshold of the most frequent class; it replaces that of the base",
            source="authors' code and USB's code: 0.95",
        )

    metrics: ClassVar[tuple[Metric, ...]] = ()
    config: Config
    ratios: Tensor
    """(C,), thresholds relative to the base threshold; ones before the first prediction."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("ratios", torch.ones(task.num_classes))
        self._selected: Tensor | None = None  # from `refine` to `weigh` of the same step

    @property
    def thresholds(self) -> Tensor:
        """Return the thresholds tau (C,)."""
        return self.ratios * self.config.confidence_threshold

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
        """Set the thresholds from predictions for the pool, images (n, 3, H, W)."""
        parts = [at_least_float32(ctx.teacher(images)).softmax(dim=-1) for _, images in unlabeled]
        largest = int(ctx.class_shares.argmax())
        base = self.config.confidence_threshold
        thresholds = class_thresholds(torch.cat(parts), self.thresholds, largest, base)
        if ctx.step:  # an untrained model predicts a single class
            self.ratios.copy_(thresholds / base)

    def refine(self, probs: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return probabilities (U, C) relative to the thresholds, normalized."""
        relative = at_least_float32(probs) / self.thresholds
        self._selected = relative.amax(dim=-1) >= 1
        return relative / relative.sum(dim=-1, keepdim=True)

    def weigh(self, probs: Tensor, mask: Tensor, batch: Batch, ctx: Context) -> Tensor:
        """Return a mask (U,): True where the probability of a class reaches its threshold."""
        # Not computed from `probs`, which the base may have sharpened.
        selected, self._selected = self._selected, None
        return mask if selected is None else selected


def class_thresholds(probs: Tensor, current: Tensor, largest: int, base: float) -> Tensor:
    """Return the thresholds (C,) that select the same share of the images of each class.

    None is above the base threshold. A class that no image is predicted as keeps its threshold.
    If no image of the most frequent class is selected, all images of the others are, as in the
    authors' code.

    Args:
        probs: (N, C) predictions.
        current: (C,) thresholds until now.
        largest: Index of the most frequent class.
        base: Threshold of this class.
    """
    confidence, predicted = probs.max(dim=-1)
    reached = confidence[predicted == largest] >= base
    share = float(reached.double().mean()) if reached.any() else 1.0
    thresholds = current.clone()
    thresholds[largest] = base
    for label in range(probs.shape[1]):
        ranked = confidence[predicted == label].sort(descending=True).values
        if label != largest and len(ranked):
            index = max(round(len(ranked) * share - 1), 0)
            thresholds[label] = ranked[index].clamp_max(base)
    return thresholds
