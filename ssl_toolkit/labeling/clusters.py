"""Compact features of many images, and their clusters, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

MOST_COMPONENTS = 128
"""Number of principal components of the features that distances are computed from."""
STARTS = 5
"""Number of initializations of k-means, of which the one with the smallest sum is taken."""
ROUNDS = 50
"""Most iterations of k-means."""
SAMPLE = 20_000
"""Most images that determine the components and the starts of k-means, and most neighbors."""
_BLOCK = 4096


def compact(features: Floats) -> Floats:
    """Return features (N, K) with nearly the inner products of the transformed ones.

    The transform is that of `models.probe.pooled_transform`: the power 1/2 with the sign kept,
    unit length, centered, unit length. K is at most `MOST_COMPONENTS`: the principal components of
    at most `SAMPLE` rows, evenly chosen.

    Args:
        features: (N, D) features of a backbone.
    """
    mean = np.zeros(features.shape[1])
    for block in _blocks(features):
        mean += _unit(_root(block)).sum(axis=0)
    mean /= len(features)

    def transformed(rows: Floats) -> Iterator[NDArray[np.float64]]:
        return (_unit(_unit(_root(block)) - mean) for block in _blocks(rows))

    size = min(MOST_COMPONENTS, *features.shape)
    if len(features) < features.shape[1]:
        left, values, _ = np.linalg.svd(
            np.concatenate([*transformed(features)]), full_matrices=False
        )
        return np.asarray(left[:, :size] * values[:size], dtype=np.float32)
    products = np.zeros((features.shape[1],) * 2)
    for block in transformed(_sample(features)):
        products += block.T @ block
    axes = np.linalg.eigh(products)[1][:, ::-1][:, :size]
    return np.concatenate([(block @ axes).astype(np.float32) for block in transformed(features)])


def k_means(x: Floats, k: int, generator: np.random.Generator) -> Rows:
    """Return the cluster (N,) of each row: Lloyd's algorithm from k-means++ starts.

    Args:
        x: (N, K) features.
        k: Number of clusters, at most N; some may be empty if rows are equal.
        generator: Source of the starts.
    """
    least, best = np.inf, np.zeros(len(x), dtype=np.int64)
    sample = x[np.sort(generator.permutation(len(x))[:SAMPLE])]
    norms = np.einsum("nk,nk->n", sample, sample)

    def squared_distances(row: int) -> Floats:
        result: Floats = norms + norms[row] - 2 * (sample @ sample[row])
        return result

    for _ in range(STARTS if len(x) <= SAMPLE else 1):
        first = int(generator.random() * len(sample))
        starts = [row for row, _ in plus_plus(squared_distances, first, k, generator)]
        clusters, total = _lloyd(x, sample[starts])
        if total < least:
            least, best = total, clusters
    return best


def plus_plus(
    squared_distances: Callable[[int], Floats],
    first: int,
    count: int,
    generator: np.random.Generator,
) -> list[tuple[int, float]]:
    """Draw rows with probability proportional to the squared distance to the nearest drawn one.

    Arthur and Vassilvitskii, *k-means++: The Advantages of Careful Seeding*, SODA 2007.

    Args:
        squared_distances: Returns the squared distances (N,) of all rows to one.
        first: The first row.
        count: Number of rows, at most N.
        generator: Source of the draws.

    Returns:
        The rows, all different, with their squared distances to the nearest one drawn before; that
        of the first is infinite.
    """
    drawn = [(first, np.inf)]
    nearest = np.maximum(squared_distances(first), 0).astype(np.float64)
    nearest[first] = 0
    free = np.ones(len(nearest), dtype=bool)
    free[first] = False
    while len(drawn) < count:
        ends = np.cumsum(nearest)
        if ends[-1] > 0:
            row = int(np.searchsorted(ends, generator.random() * ends[-1], side="right"))
            row = min(row, len(nearest) - 1)
        if ends[-1] <= 0 or not free[row]:  # all others equal drawn ones
            row = int(np.flatnonzero(free)[0])
        drawn.append((row, float(nearest[row])))
        nearest = np.minimum(nearest, np.maximum(squared_distances(row), 0))
        nearest[row], free[row] = 0, False
    return drawn


def typicality(x: Floats, neighbors: int) -> Floats:
    """Return (N,) one over the mean distance of each row to its nearest neighbors.

    Neighbors are searched among at most `SAMPLE` rows, evenly chosen.

    Args:
        x: (N, K) features of a cluster.
        neighbors: Number of neighbors; at most N - 1 are used.
    """
    others = _sample(x)
    count = min(neighbors, len(others) - 1)
    if count < 1:
        return np.zeros(len(x), dtype=np.float32)
    norms, result = np.einsum("nk,nk->n", others, others), np.empty(len(x), dtype=np.float32)
    for start in range(0, len(x), 256):
        block = x[start : start + 256]
        own = np.einsum("nk,nk->n", block, block)[:, None]
        squares = np.maximum(own + norms - 2 * (block @ others.T), 0)
        nearest = np.sqrt(np.partition(squares, count, axis=1)[:, : count + 1])
        # The smallest distance is that of the row to itself.
        result[start : start + 256] = (nearest.sum(axis=1) - nearest.min(axis=1)) / count
    return np.asarray(1 / (result + 1e-5), dtype=np.float32)


def _lloyd(x: Floats, centers: Floats) -> tuple[Rows, float]:
    """Return the clusters, and the sum of squared distances to their centers."""
    from scipy.sparse import csr_array

    clusters = np.full(len(x), -1, dtype=np.int64)
    for _ in range(ROUNDS):
        previous, total = clusters, 0.0
        clusters, norms = np.empty(len(x), dtype=np.int64), np.einsum("nk,nk->n", centers, centers)
        for start in range(0, len(x), _BLOCK):
            block = x[start : start + _BLOCK]
            gaps = norms - 2 * (block @ centers.T)
            clusters[start : start + _BLOCK] = gaps.argmin(axis=1)
            total += float(gaps.min(axis=1).sum(dtype=np.float64)) + float((block**2).sum())
        if np.array_equal(clusters, previous):
            break
        counts = np.bincount(clusters, minlength=len(centers))
        members = csr_array(
            (np.ones(len(x), dtype=np.float32), (clusters, np.arange(len(x)))),
            shape=(len(centers), len(x)),
        )
        filled = counts > 0
        means = np.asarray(members @ x)[filled] / counts[filled, None]
        centers = centers.copy()
        centers[filled] = means
    return clusters, total


def _sample(x: Floats) -> Floats:
    return x[:: -(-len(x) // SAMPLE)]


def _blocks(features: Floats) -> Iterator[NDArray[np.float64]]:
    for start in range(0, len(features), _BLOCK):
        yield features[start : start + _BLOCK].astype(np.float64)


def _root(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(x) * np.sqrt(np.abs(x))


def _unit(x: NDArray[np.float64]) -> NDArray[np.float64]:
    length: NDArray[np.float64] = np.linalg.norm(x, axis=1, keepdims=True)
    result: NDArray[np.float64] = x / np.maximum(length, 1e-12)
    return result
