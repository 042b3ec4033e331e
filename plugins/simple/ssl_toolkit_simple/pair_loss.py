"""The Pair Loss of SimPLE, as matrix products over all pairs of pseudo labels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Distance = Literal["bhattacharyya", "l2", "entropy"]

_L2_ELEMENTS = 2**24
"""Differences held at once by the l2 distance: 64 MiB in float32."""


def pair_loss(
    logits: Tensor,
    targets: Tensor,
    confidence_threshold: float,
    similarity_threshold: float,
    distance: Distance = "bhattacharyya",
    confidence_weighted: bool = True,
) -> Tensor:
    """Pull predictions toward confident pseudo labels of similar images.

    2 / (N (N - 1)) · sum over ordered pairs i != j of
    phi_c(max q_i) · phi_s(s_ij) · d(q_i, p_j), with phi_t(x) = x where x > t and 0 elsewhere, and
    s_ij the Bhattacharyya coefficient of q_i and q_j. The divisor is the number of unordered
    pairs, whatever passes, as in the paper: with all factors 1 the loss is up to twice the mean
    distance. Copies of one image pair with each other too. All in float32 or wider, outside
    autocast; memory grows with N², never with N² · C.

    Args:
        logits: (N, C), of the strongly augmented views; p = softmax(logits) carries the gradient.
        targets: (N, C) pseudo labels q, constants.
        confidence_threshold: in [0, 1]; the anchor's largest entry must be strictly above it.
        similarity_threshold: in [0, 1]; the similarity must be strictly above it.
        distance: ``bhattacharyya``, 1 - sum_c sqrt(q_c p_c); ``l2``, the Euclidean norm (not
            squared; gradient 0 where it is 0); ``entropy``, -sum_c q_c log p_c.
        confidence_weighted: whether phi_c passes the confidence on, as the paper's equation does;
            False passes 1, as its authors' code does.

    Returns:
        0-dim; 0 with zero gradient for N < 2 or when no pair passes.

    Raises:
        ValueError: the distance is unknown.

    Source: Hu, Yang, Hu and Nevatia, SimPLE (CVPR 2021, arXiv:2103.16725), the Pair Loss L_P.

    >>> targets = torch.tensor([[0.98, 0.02], [0.98, 0.02]])
    >>> pair_loss(torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), targets, 0.95, 0.9)
    tensor(0.2118)
    """
    with torch.autocast(logits.device.type, enabled=False):
        targets = _at_least_float32(targets.detach())
        log_probs = _at_least_float32(logits).log_softmax(dim=-1)

        similarity = _similarity(targets)
        torch.threshold_(similarity, similarity_threshold, 0)  # phi_s
        confidence = targets.amax(dim=-1, keepdim=True)
        anchors = F.threshold(confidence, confidence_threshold, 0)  # phi_c
        if not confidence_weighted:
            anchors = (anchors > 0).to(anchors)

        # Two distances are linear in a function of p_j, so a sum over the anchors is all they need
        # of the pairs: nothing of size N² enters the graph. The similarity is symmetric.
        if distance == "bhattacharyya":
            roots = (log_probs / 2).exp()  # finite gradient where sqrt(softmax) has none
            total = (similarity @ anchors).sum()
            total = total - (similarity @ (anchors * targets.sqrt()) * roots).sum()
        elif distance == "entropy":
            total = -(similarity @ (anchors * targets) * log_probs).sum()
        elif distance == "l2":
            total = _weighted_l2(anchors * similarity, targets, log_probs.exp())
        else:
            raise ValueError(f"unknown distance {distance!r}; bhattacharyya, l2 or entropy")
    count = len(logits)
    return total / max(count * (count - 1) / 2, 1)


def pair_statistics(
    targets: Tensor, confidence_threshold: float, similarity_threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares of ordered pairs i != j that pass the thresholds of `pair_loss`; no gradient.

    Args:
        targets: (N, C) pseudo labels.
        confidence_threshold: as for `pair_loss`.
        similarity_threshold: as for `pair_loss`.

    Returns:
        Three 0-dim tensors in [0, 1]: the anchor is confident, the two are similar, both. Each is
        a count over N (N - 1); 0 for N < 2.
    """
    masks = pair_masks(targets, confidence_threshold, similarity_threshold)
    pairs = max(len(targets) * (len(targets) - 1), 1)
    confidence, similarity, both = (mask.sum() / pairs for mask in masks.values())
    return confidence, similarity, both


def pair_masks(
    targets: Tensor, confidence_threshold: float, similarity_threshold: float
) -> dict[str, Tensor]:
    """Which ordered pairs i != j pass the thresholds of `pair_loss`; no gradient.

    Args:
        targets: (N, C) pseudo labels.
        confidence_threshold: as for `pair_loss`.
        similarity_threshold: as for `pair_loss`.

    Returns:
        Three (N, N) bool tensors, False on the diagonal: ``confidence`` (anchor i is confident),
        ``similarity`` (the two are similar), ``both``.
    """
    with torch.autocast(targets.device.type, enabled=False):
        targets = _at_least_float32(targets.detach())
        similar = _similarity(targets) > similarity_threshold
    different = ~torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    confident = (targets.amax(dim=-1) > confidence_threshold)[:, None] & different
    similar = similar & different
    return {"confidence": confident, "similarity": similar, "both": confident & similar}


def infimal_confidence(confidence_threshold: float, similarity_threshold: float) -> float:
    """Bound above which the confidence of every image that takes part in a pair lies.

    cos²(arccos sqrt(confidence_threshold) + arccos(similarity_threshold)), or 0 when the two
    angles reach a right angle together. A bound below 1 / C says nothing.

    Args:
        confidence_threshold: in [0, 1].
        similarity_threshold: in [0, 1].

    Source: SimPLE (CVPR 2021), the theorem on the infimal confidence. The condition on the angles
    is not printed there, but the squared cosine grows again beyond it.

    >>> round(infimal_confidence(0.95, 0.9), 3)
    0.608
    """
    angle = math.acos(math.sqrt(confidence_threshold)) + math.acos(similarity_threshold)
    return math.cos(angle) ** 2 if angle < math.pi / 2 else 0.0


def _similarity(targets: Tensor) -> Tensor:
    """(N, N) Bhattacharyya coefficients; the diagonal is 0, for no image pairs with itself."""
    roots = targets.sqrt()
    return (roots @ roots.T).fill_diagonal_(0)


def _weighted_l2(weights: Tensor, targets: Tensor, probs: Tensor) -> Tensor:
    """sum_ij w_ij ||q_i - p_j||, in chunks of anchors."""
    # The shortcut through ||q||² - 2 q·p + ||p||² loses small distances to cancellation. On a GPU
    # the backward of cdist holds all its differences, hence the chunks.
    rows = max(_L2_ELEMENTS // max(probs.numel(), 1), 1)
    total = probs.new_zeros(())
    chunks = zip(torch.split(weights, rows), torch.split(targets.to(probs), rows), strict=True)
    for part, anchors in chunks:
        distances = torch.cdist(anchors, probs, compute_mode="donot_use_mm_for_euclid_dist")
        total = total + (part * distances).sum()
    return total


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
