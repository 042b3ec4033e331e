"""The Pair Loss of SimPLE, as matrix products over all pairs of pseudo labels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.ops import at_least_float32

Distance = Literal["bhattacharyya", "l2", "entropy"]

_L2_ELEMENTS = 2**24
"""Number of differences held in memory by the l2 distance: 64 MiB in float32."""


def pair_weights(
    targets: Tensor, confidence_threshold: float, similarity_threshold: float
) -> tuple[Tensor, Tensor]:
    """Compute the factors phi_c and phi_s of all ordered pairs; no gradient.

    phi_t(x) is x where x > t, and 0 elsewhere.

    Args:
        targets: (N, C) pseudo labels q.
        confidence_threshold: in [0, 1]; an image counts if its largest q is strictly above it.
        similarity_threshold: in [0, 1]; a pair counts if its similarity is strictly above it.

    Returns:
        phi_c (N,), of the confidence max_c q_ic, and phi_s (N, N), of the similarity
        s_ij = sum_c sqrt(q_ic q_jc) (the Bhattacharyya coefficient); its diagonal is 0, because no
        image pairs with itself. In float32 or wider, outside autocast.
    """
    with torch.autocast(targets.device.type, enabled=False):
        targets = at_least_float32(targets.detach())
        phi_c = F.threshold(targets.amax(dim=-1), confidence_threshold, 0)
        roots = targets.sqrt()
        phi_s = (roots @ roots.T).fill_diagonal_(0)
        return phi_c, torch.threshold_(phi_s, similarity_threshold, 0)


def pair_loss(
    logits: Tensor,
    targets: Tensor,
    phi_c: Tensor,
    phi_s: Tensor,
    distance: Distance = "bhattacharyya",
) -> Tensor:
    """Pull predictions toward confident pseudo labels of similar images.

    2 / (N (N - 1)) · sum over ordered pairs i != j of phi_c(i) · phi_s(i, j) · d(q_i, p_j). The
    divisor is the number of unordered pairs, whatever passes, as in the paper: with all factors 1
    the loss is up to twice the mean distance. Copies of one image pair with each other too. All in
    float32 or wider, outside autocast; memory grows with N², never with N² · C.

    Args:
        logits: (N, C), of the strongly augmented views; p = softmax(logits) carries the gradient.
        targets: (N, C) pseudo labels q, constants.
        phi_c: (N,) from `pair_weights`; ones in place of its nonzero values give the loss of the
            authors' code.
        phi_s: (N, N) from `pair_weights`: symmetric, 0 on the diagonal.
        distance: ``bhattacharyya``, 1 - sum_c sqrt(q_c p_c); ``l2``, the Euclidean norm (not
            squared; gradient 0 where it is 0); ``entropy``, -sum_c q_c log p_c.

    Returns:
        0-dim; 0 with zero gradient for N < 2 or when no pair passes.

    Raises:
        ValueError: the distance is unknown.

    Source: Hu, Yang, Hu and Nevatia, SimPLE (CVPR 2021, arXiv:2103.16725), the Pair Loss L_P.

    The equation as plain loops gives the same:

    >>> q = torch.tensor([[0.98, 0.02], [0.96, 0.04], [0.5, 0.5]])
    >>> logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    >>> phi_c, phi_s = pair_weights(q, 0.95, 0.8)
    >>> p, total = logits.softmax(dim=-1), 0.0
    >>> for i in range(3):
    ...     for j in range(3):
    ...         coefficient = sum((q[i, c] * p[j, c]).sqrt() for c in range(2))
    ...         total += phi_c[i] * phi_s[i, j] * (1 - coefficient)
    >>> torch.testing.assert_close(pair_loss(logits, q, phi_c, phi_s), 2 / (3 * 2) * total)
    """
    with torch.autocast(logits.device.type, enabled=False):
        targets = at_least_float32(targets.detach())
        log_probs = at_least_float32(logits).log_softmax(dim=-1)
        phi_c = phi_c[:, None]
        # With a = phi_c, S = phi_s (S_ij = S_ji) and o for products by element,
        #     sum_ij a_i S_ij (1 - sum_c sqrt(q_ic p_jc))
        #         = sum_j (sum_i S_ji a_i) - sum_jc (sum_i S_ji a_i sqrt(q_ic)) sqrt(p_jc)
        #         = sum(S a) - sum((S (a o sqrt(q))) o sqrt(p)),
        # and likewise sum_ij a_i S_ij (-sum_c q_ic log(p_jc)) = -sum((S (a o q)) o log(p)). So
        # the graph holds p, of size N · C, but nothing of size N². There is no such form for l2.
        if distance == "bhattacharyya":
            roots = (log_probs / 2).exp()  # finite gradient where sqrt(softmax) has none
            total = (phi_s @ phi_c).sum()
            total = total - (phi_s @ (phi_c * targets.sqrt()) * roots).sum()
        elif distance == "entropy":
            total = -(phi_s @ (phi_c * targets) * log_probs).sum()
        elif distance == "l2":
            total = _weighted_l2(phi_c * phi_s, targets, log_probs.exp())
        else:
            raise ValueError(f"unknown distance {distance!r}; bhattacharyya, l2 or entropy")
    count = len(logits)
    return total / max(count * (count - 1) / 2, 1)


def pair_masks(confident: Tensor, phi_s: Tensor) -> dict[str, Tensor]:
    """Mark the ordered pairs i != j that pass the thresholds of `pair_weights`.

    Args:
        confident: (N,) bool, True where phi_c is above 0.
        phi_s: (N, N) from `pair_weights`.

    Returns:
        Three (N, N) bool tensors, False on the diagonal: ``confidence`` (image i is confident),
        ``similarity`` (the two are similar), ``both``.
    """
    different = ~torch.eye(len(confident), dtype=torch.bool, device=confident.device)
    anchors = confident[:, None] & different
    similar = phi_s > 0
    return {"confidence": anchors, "similarity": similar, "both": anchors & similar}


def pair_statistics(masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compute the share of the N (N - 1) ordered pairs in each mask; 0 for N < 2.

    Args:
        masks: masks of `pair_masks`.

    Returns:
        0-dim tensors in [0, 1] under the same names.
    """
    return {name: mask.sum() / max(len(mask) * (len(mask) - 1), 1) for name, mask in masks.items()}


def _weighted_l2(weights: Tensor, targets: Tensor, probs: Tensor) -> Tensor:
    """sum_ij w_ij ||q_i - p_j||, in chunks of rows i."""
    # ||q||² - 2 q·p + ||p||² loses small distances to cancellation. On a GPU, the backward pass
    # of cdist stores all differences, so compute it in chunks.
    rows = max(_L2_ELEMENTS // max(probs.numel(), 1), 1)
    total = probs.new_zeros(())
    chunks = zip(torch.split(weights, rows), torch.split(targets.to(probs), rows), strict=True)
    for chunk_weights, chunk_targets in chunks:
        distances = torch.cdist(chunk_targets, probs, compute_mode="donot_use_mm_for_euclid_dist")
        total = total + (chunk_weights * distances).sum()
    return total
