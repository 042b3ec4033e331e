"""The class shares of the unlabeled pool, as far as they can be known without its labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssl_toolkit.ops import follow_shares

SHARE_EXPONENT = 0.5
"""How far a probe's probabilities follow the shares they imply; docs/pretrained.md has why."""


def shares_of(counts: Sequence[int]) -> Tensor:
    """Counts of C classes as float32 shares."""
    given = torch.tensor(counts, dtype=torch.float64)
    return (given / given.sum()).float()


def labels_are_informative(counts: Sequence[int]) -> bool:
    """Return True if the label counts say anything about the pool.

    Equal numbers, up to one image, are there by design (``--labels-per-class``) whatever the pool
    is like.

    Args:
        counts: labeled images of each class.
    """
    return max(counts) - min(counts) > 1


def estimate_shares(probs: Tensor, label_counts: Sequence[int]) -> Tensor:
    """Class shares of a pool by the probabilities of a classifier that was fitted to the labels.

    Args:
        probs: (N, C) of the images of the pool.
        label_counts: labeled images of each class.

    Returns:
        (C,) float32 that sum to 1, the mean of `ssl_toolkit.ops.follow_shares`.
    """
    counts = torch.tensor(label_counts, dtype=torch.float64)
    return follow_shares(probs.double(), SHARE_EXPONENT, counts=counts).mean(dim=0).float()


def class_shares(label_counts: Sequence[int], estimate: Tensor | None) -> Tensor:
    """Return the best known shares: of the labels if they are informative, else the estimate.

    Args:
        label_counts: labeled images of each class.
        estimate: (C,) of a probe, None where there is none.

    Returns:
        (C,) float32 that sum to 1.
    """
    if estimate is None or labels_are_informative(label_counts):
        return shares_of(label_counts)
    return estimate
