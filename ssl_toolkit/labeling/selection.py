"""Methods that choose the images to label next, on the features of a pool."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.labeling.clusters import Floats, Rows, k_means, plus_plus, typicality

Method = Literal["kmeans", "typicality", "margin", "badge", "random"]
METHODS: tuple[Method, ...] = get_args(Method)
NEED_LABELS = ("margin", "badge")
"""Methods that use predictions, of a run or of a probe on the labels."""

NEIGHBORS = 20
"""Neighbors of which typicality is the inverse mean distance, as in the paper."""
MOST_CLUSTERS = 500
"""Most clusters, as in the paper."""
SMALLEST_CLUSTER = 5
"""Images of a cluster from which on it is chosen from, as in the released code."""


class Choice(NamedTuple):
    """An image that a method chooses."""

    position: int
    """Its position among the candidates."""
    score: float | None
    """Value by which the method chose it; None for a random one."""


def by_random(keys: Sequence[str], budget: int, seed: int) -> list[Choice]:
    """Choose at random: the order of the keys by their hashes with the seed.

    Args:
        keys: (n,) names of the candidates.
        budget: Number of images, at most n.
        seed: Distinguishes choices.
    """

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"label-next/{seed}\0{keys[index]}".encode()).digest()

    return [Choice(index, None) for index in sorted(range(len(keys)), key=rank)[:budget]]


def by_clusters(
    x: Floats,
    candidates: NDArray[np.bool_],
    budget: int,
    generator: np.random.Generator,
    *,
    typical: bool = False,
) -> list[Choice]:
    """Choose an image of each cluster of k-means without a labeled one, large clusters first.

    There are as many clusters as images with a label after this choice, at most `MOST_CLUSTERS`.
    Hacohen, Dekel and Weinshall, *Active Learning on a Budget: Opposite Strategies Suit High and
    Low Budgets*, ICML 2022 (TypiClust), choose the most typical image of a cluster.

    Args:
        x: (N, K) features of the labeled images and the candidates.
        candidates: (N,) True for candidates, n of them.
        budget: Number of images, at most n.
        generator: Source of the starts of k-means.
        typical: True to choose by typicality, the score: the inverse of the mean distance to
            `NEIGHBORS` neighbors in the cluster. False to choose the image nearest to the center of
            the cluster; the score is its distance.
    """
    labeled = int((~candidates).sum())
    count = min(labeled + budget, MOST_CLUSTERS, len(x))
    clusters = k_means(x, count, generator)
    sizes = np.bincount(clusters, minlength=count)
    used = np.bincount(clusters[~candidates], minlength=count)
    left = np.bincount(clusters[candidates], minlength=count)
    positions = np.cumsum(candidates) - 1
    rank = _most_typical if typical else _most_central
    least = min(SMALLEST_CLUSTER, len(x) / count / 2)  # clusters of a small pool are small
    queues: dict[int, list[tuple[int, float]]] = {}
    chosen: list[Choice] = []
    while len(chosen) < budget:
        # A cluster of few images holds outliers, and is used when no other is left.
        small = sizes < least
        cluster = int(np.lexsort((-sizes, used, small, left == 0))[0])
        if cluster not in queues:
            members = np.flatnonzero(clusters == cluster)
            queues[cluster] = [one for one in rank(x, members) if candidates[one[0]]]
        row, score = queues[cluster].pop(0)
        chosen.append(Choice(int(positions[row]), score))
        used[cluster] += 1
        left[cluster] -= 1
    return chosen


def by_margin(probabilities: Floats, budget: int) -> list[Choice]:
    """Choose the images with the smallest margin between the two most probable classes.

    Scheffer, Decomain and Wrobel, *Active Hidden Markov Models*, IDA 2001. The score is the margin.

    Args:
        probabilities: (n, C) of the candidates.
        budget: Number of images, at most n.
    """
    best = np.partition(probabilities, -2, axis=1)
    margins = best[:, -1] - best[:, -2]
    order = np.argsort(margins, kind="stable")[:budget]
    return [Choice(int(index), float(margins[index])) for index in order]


def by_badge(
    x: Floats, probabilities: Floats, budget: int, generator: np.random.Generator
) -> list[Choice]:
    """Choose by k-means++ on the gradients of the loss of the last layer.

    Ash, Zhang, Krishnamurthy, Langford and Agarwal, *Deep Batch Active Learning by Diverse,
    Uncertain Gradient Lower Bounds*, ICLR 2020: the gradient of an image with the predicted class
    as its label is the outer product of p - onehot and its features, whose distances follow from
    those of the factors. The first image has the largest gradient. The score is the distance to the
    nearest image chosen before.

    Args:
        x: (n, K) features of the candidates.
        probabilities: (n, C) of the candidates.
        budget: Number of images, at most n.
        generator: Source of the draws.
    """
    errors = probabilities.copy()
    errors[np.arange(len(errors)), probabilities.argmax(axis=1)] -= 1
    norms = np.einsum("nc,nc->n", errors, errors) * np.einsum("nk,nk->n", x, x)

    def squared_distances(row: int) -> Floats:
        result: Floats = norms + norms[row] - 2 * (errors @ errors[row]) * (x @ x[row])
        return result

    first = int(norms.argmax())
    drawn = plus_plus(squared_distances, first, budget, generator)
    drawn[0] = (first, float(norms[first]))
    return [Choice(row, float(np.sqrt(square))) for row, square in drawn]


def _most_typical(x: Floats, members: Rows) -> list[tuple[int, float]]:
    """Return the images of a cluster and their typicality, the most typical first."""
    return _sorted(members, typicality(x[members], NEIGHBORS), -1)


def _most_central(x: Floats, members: Rows) -> list[tuple[int, float]]:
    """Return the images of a cluster and their distance to its center, the nearest first."""
    gaps = x[members] - x[members].mean(axis=0)
    return _sorted(members, np.sqrt(np.einsum("nk,nk->n", gaps, gaps)), 1)


def _sorted(members: Rows, scores: Floats, sign: int) -> list[tuple[int, float]]:
    order = np.argsort(sign * scores, kind="stable")
    return [*zip(members[order].tolist(), scores[order].tolist(), strict=True)]
