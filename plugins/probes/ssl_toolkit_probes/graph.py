"""Linear probe on labels spread over the neighbor graph of all training images."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    FeatureAlgorithm,
    FeatureHead,
    Options,
    TrainingFeatures,
    fit_soft_labels,
    option,
    pooled_transform,
)
from ssl_toolkit.ops import follow_shares

PROBE_STRENGTH = 10.0
"""C of the probe that is fitted to the labels alone."""


class GraphProbe(FeatureAlgorithm):
    """Spread the labels over the neighbor graph, then learn a linear probe from all soft labels.

    With x_i the features of the n labeled and m unlabeled images under
    `ssl_toolkit.pooled_transform`, each of unit length,

    1. a_ij = max(0, x_i · x_j)^gamma for the k nearest j of i, symmetrized by the larger of both,
       and S = D^(-1/2) A D^(-1/2);
    2. F = (I - alpha S)^(-1) Y, where a label counts 1 over the labels of its class: the closed
       form of Zhou et al., NeurIPS 2003; rows of F are normalized to distributions q_i, and
       labeled images keep their label;
    3. the q_i of the pool follow the class shares that they imply, damped: q_ic is multiplied by
       w_c = (C · share_c)^share_exponent and normalized, shares and weights in turn (the EM of
       Saerens et al., Neural Computation 2002): equal numbers of labels carry no information
       about the pool;
    4. a multinomial logistic regression fitted to all (x_i, q_i), labeled images with
       `label_weight`; its logits are averaged with those of one on the labels alone, which costs a
       little where the graph is right and saves much where it is wrong.
    """

    family: ClassVar[str] = "graph"
    auto_rank: ClassVar[int] = 100

    class Config(Options):
        """Options of the graph probe."""

        k: int = option(10, ge=1, help="neighbors of each image in the graph")
        alpha: float = option(0.65, gt=0, lt=1, help="share that an image takes from neighbors")
        gamma: float = option(3.0, ge=0, help="power of the cosine in the weight of an edge")
        strength: float = option(2.0, gt=0, help="C of the logistic regression")
        label_weight: float = option(2.0, gt=0, help="weight of a labeled image; unlabeled: 1")
        share_exponent: float = option(
            0.5, ge=0, le=1, help="how far soft labels follow the estimated shares of the classes"
        )
        probe_share: float = option(
            0.25, ge=0, le=1, help="share of a probe on the labels alone in the logits"
        )
        most_unlabeled: int = option(
            2000, ge=1, help="unlabeled images in the graph at most, drawn by the seed"
        )

    config: Config

    @property
    def most_unlabeled(self) -> int:
        """Number of the options: a larger graph costs more than it gains (docs/results)."""
        return self.config.most_unlabeled

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """Return a linear head."""
        c = self.config
        pool = torch.cat([features.labeled[0], features.unlabeled[0]])
        transform = pooled_transform(pool, features.blocks)
        x = transform(pool).double()
        one_hot = F.one_hot(features.labels, self.task.num_classes).double()
        targets = spread_labels(x, one_hot, c.k, c.alpha, c.gamma)
        n = len(one_hot)
        targets[n:] = follow_shares(targets[n:], c.share_exponent)
        weights = torch.ones(len(x), dtype=torch.float64)
        weights[: len(one_hot)] = c.label_weight
        weight, bias = fit_soft_labels(x, targets, weights, c.strength)
        probe, probe_bias = fit_soft_labels(
            x[:n], one_hot, weights[:n] / c.label_weight, PROBE_STRENGTH
        )
        weight = (1 - c.probe_share) * weight + c.probe_share * probe
        bias = (1 - c.probe_share) * bias + c.probe_share * probe_bias
        return FeatureHead.linear(transform, weight, bias)


def spread_labels(x: Tensor, one_hot: Tensor, k: int, alpha: float, gamma: float) -> Tensor:
    """Return label distributions of all images.

    Args:
        x: (N, K) features of unit length; the first n are the labeled ones.
        one_hot: (n, C) their labels.
        k: neighbors of each image.
        alpha: share that an image takes from its neighbors, in (0, 1).
        gamma: power of the cosine in the weight of an edge.

    Returns:
        (N, C) float64 rows that sum to 1; the first n are `one_hot`.
    """
    from scipy import sparse
    from scipy.sparse.linalg import cg
    from sklearn.neighbors import NearestNeighbors

    points, n = x.numpy(), len(x)
    k = min(k, n - 1)
    nearest = NearestNeighbors(n_neighbors=k).fit(points).kneighbors(return_distance=False)
    rows, columns = np.repeat(np.arange(n), k), nearest.reshape(-1)
    cosines = np.einsum("ij,ij->i", points[rows], points[columns])
    edges = sparse.csr_array((np.maximum(cosines, 0) ** gamma, (rows, columns)), shape=(n, n))
    edges = edges.maximum(edges.T)
    degrees = np.asarray(edges.sum(axis=1)).reshape(-1)
    scale = sparse.diags_array(1 / np.sqrt(np.where(degrees > 0, degrees, 1)))
    system = sparse.eye_array(n, format="csr") - alpha * (scale @ edges @ scale)
    counts = one_hot.sum(dim=0).clamp_min(1)
    sources = np.zeros((n, one_hot.shape[1]))
    sources[: len(one_hot)] = (one_hot / counts).numpy()
    # Conjugate gradients: the eigenvalues of the system are in [1 - alpha, 1 + alpha].
    solved = [cg(system, column, rtol=1e-10, maxiter=1000)[0] for column in sources.T]
    spread = torch.from_numpy(np.stack(solved, axis=1)).clamp_min(0) + 1e-9
    targets = spread / spread.sum(dim=-1, keepdim=True)
    targets[: len(one_hot)] = one_hot
    return targets
