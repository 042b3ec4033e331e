"""Losses of plugins as functions of logits and targets, as in papers and golden vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from ssl_toolkit_fixmatch import FixMatch
from ssl_toolkit_simple import pair_loss as weighted_pair_loss
from ssl_toolkit_simple import pair_masks as masks_of
from ssl_toolkit_simple import pair_statistics as shares_of
from ssl_toolkit_simple import pair_weights
from torch import Tensor

from ssl_toolkit import Batch, TaskInfo, ops

Pair = tuple[Tensor, Tensor, Tensor]


def l2_consistency(logits: Tensor, targets: Tensor, threshold: float | None = None) -> Tensor:
    mask = None if threshold is None else targets.float().amax(dim=-1) > threshold
    return ops.l2_consistency(logits, targets, mask)


def pair_loss(
    logits: Tensor,
    targets: Tensor,
    confidence_threshold: float,
    similarity_threshold: float,
    distance: Any = "bhattacharyya",
    confidence_weighted: bool = True,
) -> Tensor:
    phi_c, phi_s = pair_weights(targets, confidence_threshold, similarity_threshold)
    phi_c = phi_c if confidence_weighted else (phi_c > 0).to(phi_c)
    return weighted_pair_loss(logits, targets, phi_c, phi_s, distance)


def pair_masks(targets: Tensor, *thresholds: float) -> dict[str, Tensor]:
    phi_c, phi_s = pair_weights(targets, *thresholds)
    return masks_of(phi_c > 0, phi_s)


def pair_statistics(targets: Tensor, *thresholds: float) -> Pair:
    shares = shares_of(pair_masks(targets, *thresholds))
    return shares["confidence"], shares["similarity"], shares["both"]


def fixmatch_loss(weak: Tensor, strong: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the unsupervised loss of `FixMatch.step`, and the share of confident rows."""

    class Predicted:
        def model(self, images: Tensor) -> Tensor:
            return images

        def refine(self, probs: Tensor) -> Tensor:
            return probs

        def weigh(self, probs: Tensor, mask: Tensor) -> Tensor:
            return mask

        def weigh_labels(self, losses: Tensor) -> Tensor:
            return losses

    classes = weak.shape[-1]
    algorithm = FixMatch(
        FixMatch.Config(confidence_threshold=threshold, interleaved=False),
        TaskInfo(classes, 1, (1,) * classes, len(weak), 1),
    )
    none = torch.zeros(0, dtype=torch.int64)
    labeled = torch.zeros(1, 1, classes).to(weak)
    batch = Batch(
        torch.zeros(1, dtype=torch.int64), none, labeled, none, none, weak[None], strong[None]
    )
    output = algorithm.step(batch, Predicted())  # type: ignore[arg-type]
    assert output.pseudo_labels is not None
    mask = output.pseudo_labels.mask
    return output.losses["unsupervised"].value, mask.to(output.pseudo_labels.probs).mean()


def infimal_confidence(confidence_threshold: float, similarity_threshold: float) -> float:
    """Return the lower bound on the confidence of images that take part in a pair.

    SimPLE (CVPR 2021), the theorem on the infimal confidence. The paper omits the condition on
    the angles, but the squared cosine increases again beyond it.
    """
    angle = math.acos(math.sqrt(confidence_threshold)) + math.acos(similarity_threshold)
    return math.cos(angle) ** 2 if angle < math.pi / 2 else 0.0
