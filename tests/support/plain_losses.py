"""Losses as plain loops over images and classes, and what the loops of algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from toy_context import CLASSES

from ssl_toolkit import Batch

LENGTH = 100
"""Steps of a toy run."""

Losses = tuple[dict[str, Any], list[bool] | None]
"""Weighted losses by name, and the mask of the pseudo labels (None without any)."""


class Loop:
    """The formulas of an algorithm, image by image.

    Called at each step with a namespace ``run`` (``net``, ``teacher``, ``teacher_head``,
    ``generator``, ``step``) and the batch.
    """

    head: nn.Module | None = None
    """Module that takes the weights of the algorithm's only module, and is trained like it."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def __call__(self, run: Any, batch: Batch) -> Losses:
        """Return the losses of a step."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return the expected first entries of buffers, by name."""
        return {}

    def check(self, used: list[int]) -> None:
        """Check that the formula mattered: `used` has the number of pseudo labels of each step."""

    def ramp(self, step: int) -> float:
        """Return the factor of a weight that rises linearly from 0."""
        length = getattr(self.options, "rampup_steps", None)
        if length is None:
            length = self.options.rampup_fraction * LENGTH
        return min(step / length, 1.0) if length else 1.0


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def log_probs(net: Any, views: Tensor) -> list[Tensor]:
    return [net(view[None]).logits[0].log_softmax(dim=0) for view in views]


def constant_probs(net: Any, views: Tensor) -> list[list[float]]:
    with torch.no_grad():
        return [row.exp().tolist() for row in log_probs(net, views)]


def pseudo_labels(net: Any, batch: Batch) -> tuple[list[float], list[int]]:
    rows = constant_probs(net, batch.unlabeled_weak[0])
    return [max(row) for row in rows], [row.index(max(row)) for row in rows]


def fixmatch_losses(
    net: Any, batch: Batch, labels: list[int], weights: Sequence[float]
) -> dict[str, Any]:
    """Return both losses of FixMatch, for any mask or weights."""
    return {
        "supervised": supervised(net, batch),
        "unsupervised": mean_loss(log_probs(net, batch.unlabeled_strong[0]), labels, weights),
    }


def supervised(net: Any, batch: Batch) -> Tensor:
    rows = log_probs(net, batch.labeled_weak[0])
    return mean_loss(rows, batch.labels.tolist(), [1.0] * len(rows))


def mean_loss(rows: list[Tensor], labels: list[int], weights: Sequence[float]) -> Tensor:
    total = zero()
    for row, label, weight in zip(rows, labels, weights, strict=True):
        total = total - weight * row[label]
    return total / len(rows)


def cross_entropy(row: Tensor, target: Sequence[float]) -> Tensor:
    return -sum((p * row[c] for c, p in enumerate(target)), zero())


def squared(rows: list[Tensor], targets: list[list[float]]) -> Tensor:
    """Return the mean over images and classes of the squared difference of probabilities."""
    total = zero()
    for row, target in zip(rows, targets, strict=True):
        for c in range(CLASSES):
            total = total + (row[c].exp() - target[c]) ** 2
    return total / len(rows) / CLASSES


def averaged_and_sharpened(net: Any, views: Tensor, temperature: float) -> list[list[float]]:
    """Return the mean prediction for the views (K, U, 3, H, W) of each image, sharpened."""
    predictions = [constant_probs(net, view) for view in views]
    targets = []
    for rows in zip(*predictions, strict=True):
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        powers = [p ** (1 / temperature) for p in mean]
        targets.append([power / sum(powers) for power in powers])
    return targets
