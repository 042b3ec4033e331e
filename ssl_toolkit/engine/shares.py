"""Estimates of the class shares of the unlabeled pool, without its labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssl_toolkit.ops import follow_shares

SHARE_EXPONENT = 0.5
"""How far a probe's probabilities follow the shares they imply, see
docs/explanation/frozen-features.md."""


def shares_of(counts: Sequence[int]) -> Tensor:
    """Return counts of C classes as float32 shares."""
    numbers = torch.tensor(counts, dtype=torch.float64)
    return (numbers / numbers.sum()).float()


def labels_are_informative(counts: Sequence[int]) -> bool:
    """Return True if the label counts are evidence about the pool.

    Counts that differ by at most one image are by design (``--labels-per-class``).

    Args:
        counts: labeled images of each class.
    """
    return max(counts) - min(counts) > 1


def estimate_shares(probs: Tensor, label_counts: Sequence[int]) -> Tensor:
    """Estimate the class shares of a pool from a classifier that was fitted to the labels.

    Args:
        probs: (N, C) probabilities of the images of the pool.
        label_counts: labeled images of each class.

    Returns:
        (C,) float32 that sum to 1, the mean of `ssl_toolkit.ops.follow_shares`.
    """
    counts = torch.tensor(label_counts, dtype=torch.float64)
    return follow_shares(probs.double(), SHARE_EXPONENT, counts=counts).mean(dim=0).float()


def class_shares(
    label_counts: Sequence[int], estimate: Tensor | None, prior: Tensor | None = None
) -> Tensor:
    """Return the best known shares of the pool.

    They are those that the user sets, else those of the labels if they are informative, else the
    estimate.

    Args:
        label_counts: labeled images of each class.
        estimate: (C,) of a probe, None where there is none.
        prior: (C,) of the setting ``prior``, None where it is not set.

    Returns:
        (C,) float32 that sum to 1.
    """
    if prior is not None:
        return prior
    if estimate is None or labels_are_informative(label_counts):
        return shares_of(label_counts)
    return estimate
