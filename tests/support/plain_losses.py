"""Losses as plain loops over images and classes, for references of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from toy_context import Net

from ssl_toolkit import Batch


def log_probs(net: Net, views: Tensor) -> list[Tensor]:
    return [net(view[None]).logits[0].log_softmax(dim=0) for view in views]


def pseudo_labels(net: Net, batch: Batch) -> tuple[list[float], list[int]]:
    with torch.no_grad():
        rows = log_probs(net, batch.unlabeled_weak[0])
    return [float(row.exp().max()) for row in rows], [int(row.argmax()) for row in rows]


def fixmatch_losses(
    net: Net, batch: Batch, labels: list[int], weights: Sequence[float]
) -> dict[str, Any]:
    """Return both losses of FixMatch, for any mask or weights."""
    labeled = log_probs(net, batch.labeled_weak[0])
    return {
        "supervised": mean_loss(labeled, batch.labels.tolist(), [True] * len(labeled)),
        "unsupervised": mean_loss(log_probs(net, batch.unlabeled_strong[0]), labels, weights),
    }


def mean_loss(rows: list[Tensor], labels: list[int], weights: Sequence[float]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, label, weight in zip(rows, labels, weights, strict=True):
        total = total - weight * row[label]
    return total / len(rows)
