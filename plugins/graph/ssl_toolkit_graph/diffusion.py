"""Diffusion of labels over the neighbor graph of features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-6
"""Relative residual at which conjugate gradients stop, as in the authors' code."""


def diffuse(
    points: Tensor, one_hot: Tensor, k: int, gamma: float, alpha: float, max_iterations: int
) -> Tensor:
    """Solve (I - alpha D^(-1/2) W D^(-1/2)) Z = Y with W = A + A^T, by conjugate gradients.

    a_ij = max(0, x_i · x_j)^gamma if j is one of the k nearest neighbors of i, else 0.

    Args:
        points: (N, D) float64 features of unit length; the first n are labeled.
        one_hot: (n, C) their labels, each divided by the number of labels of its class in Y.
        k: number of neighbors.
        gamma: power of the cosine.
        alpha: share that an image takes from its neighbors, in (0, 1).
        max_iterations: maximum number of iterations.

    Returns:
        (N, C) float64, not negative; a row is 0 if no labeled image is connected to it.
    """
    from scipy import sparse
    from scipy.sparse.linalg import cg
    from sklearn.neighbors import NearestNeighbors

    x, count = points.numpy(), len(points)
    k = min(k, count - 1)
    index = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(x)
    nearest = index.kneighbors(return_distance=False)  # without the point itself
    rows, columns = np.repeat(np.arange(count), k), nearest.reshape(-1)
    cosines = np.einsum("ij,ij->i", x[rows], x[columns])
    edges = sparse.csr_array((np.maximum(cosines, 0) ** gamma, (rows, columns)), (count, count))
    edges = edges + edges.T
    degrees = np.asarray(edges.sum(axis=1)).reshape(-1)
    scale = sparse.diags_array(1 / np.sqrt(np.where(degrees > 0, degrees, 1)))
    system = sparse.eye_array(count, format="csr") - alpha * (scale @ edges @ scale)

    sources = np.zeros((count, one_hot.shape[1]))
    sources[: len(one_hot)] = (one_hot / one_hot.sum(dim=0).clamp_min(1)).numpy()
    solved = [cg(system, y, rtol=TOLERANCE, maxiter=max_iterations)[0] for y in sources.T]
    return torch.from_numpy(np.stack(solved, axis=1)).clamp_min(0)
