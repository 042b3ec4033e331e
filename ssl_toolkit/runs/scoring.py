"""Scores of a classifier, from probabilities and labels; numpy, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNEVEN = 1.5
"""Ratio of the numbers of images of the largest and the smallest class from which the balanced
accuracy ranks. Test sets of benchmarks that are meant to be even, such as MNIST's, reach 1.3."""


def are_uneven(counts: Iterable[int]) -> bool:
    """Return True if the balanced accuracy ranks, as in every table, page and message.

    Args:
        counts: Number of images of each class; classes without images don't count.

    >>> are_uneven([100, 70]), are_uneven([100, 50]), are_uneven([100, 0])
    (False, True, False)
    """
    present = [count for count in counts if count]
    return bool(present) and max(present) >= UNEVEN * min(present)


def area_under_roc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float:
    """Return the probability that a positive has a larger score than a negative; ties count half.

    Args:
        scores: (N,).
        positive: (N,) with at least one positive and one negative.

    >>> area_under_roc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True]))
    0.875
    """
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = (np.cumsum(counts) - (counts - 1) / 2)[ranks]
    above = positive.sum()
    excess = mean_ranks[positive].sum() - above * (above + 1) / 2
    return float(excess / (above * (len(scores) - above)))


def uneven_text(counts: Iterable[int]) -> str:
    """Return how uneven some classes are, in a few words."""
    present = [count for count in counts if count]
    return f"the classes are uneven, with {min(present):,} to {max(present):,} images"


def convergence_step(
    evaluations: Sequence[tuple[int, float]], fraction: float = 0.95
) -> int | None:
    """Return the first evaluated step that reaches a fraction of the highest accuracy of the run.

    Source: Hu et al., SimPLE, CVPR 2021, section 4 (convergence time).

    Args:
        evaluations: Steps, ascending, and their validation accuracies.
        fraction: Share of the highest accuracy, in [0, 1].

    Returns:
        The step, or None if nothing was evaluated.

    >>> convergence_step([(10, 0.50), (20, 0.90), (30, 0.92)])
    20
    """
    least = fraction * max((accuracy for _, accuracy in evaluations), default=0.0)
    return next((step for step, accuracy in evaluations if accuracy >= least), None)


def scores(
    probs: NDArray[np.float32], labels: NDArray[np.int64], classes: Sequence[str]
) -> dict[str, Any]:
    """Return all scores of a model on labeled images.

    Args:
        probs: (N, C) probabilities, N >= 1.
        labels: (N,) true classes.
        classes: C names.

    Returns:
        ``accuracy`` (correct / N), ``count`` (N), ``balanced_accuracy`` (mean of the recalls of
        the classes present), ``macro_f1`` (mean over all C classes; 0 for one without hits),
        ``ece`` (15 equal bins of confidence, weighted by count), ``nll`` (nats, mean over N),
        ``top5`` (`top_k_accuracy`), ``interval`` (`bootstrap_interval` of the accuracy),
        ``balanced_interval`` (`balanced_bootstrap_interval`), ``per_class`` (name to accuracy, None
        where absent, and count).
    """
    wide = probs.astype(np.float64)
    predicted = wide.argmax(axis=1)
    correct = predicted == labels
    num_classes = len(classes)
    count = np.bincount(labels, minlength=num_classes)
    hits = np.bincount(labels[correct], minlength=num_classes)
    guesses = np.bincount(predicted, minlength=num_classes)
    present = count > 0
    recall = hits[present] / count[present]
    f1 = 2 * hits / np.maximum(count + guesses, 1)
    truth = wide[np.arange(len(labels)), labels]
    return {
        "accuracy": float(correct.sum() / len(labels)),
        "count": len(labels),
        "balanced_accuracy": float(recall.mean()),
        "macro_f1": float(f1.mean()),
        "ece": expected_calibration_error(wide, correct),
        "nll": float(-np.log(np.maximum(truth, np.finfo(np.float32).tiny)).mean()),
        "top5": top_k_accuracy(wide, labels, 5),
        "interval": list(bootstrap_interval(int(correct.sum()), len(labels))),
        "balanced_interval": list(balanced_bootstrap_interval(hits[present], count[present])),
        "per_class": {
            name: {"accuracy": float(h / n) if n else None, "count": int(n)}
            for name, h, n in zip(classes, hits, count, strict=True)
        },
    }


def expected_calibration_error(
    probs: NDArray[np.float64], correct: NDArray[np.bool_], bins: int = 15
) -> float:
    """Return the mean gap between confidence and accuracy over equal bins, weighted by count.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, eq. 3.

    Args:
        probs: (N, C).
        correct: (N,) True if the most probable class is the true one.
        bins: Number of bins over (0, 1].
    """
    confidence = probs.max(axis=1)
    index = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(index, weights=confidence - correct, minlength=bins)
    return float(np.abs(gap).sum() / len(correct))


def top_k_accuracy(probs: NDArray[np.floating[Any]], labels: NDArray[np.int64], k: int) -> float:
    """Return the share of images whose true class is among the `k` most probable ones.

    Ties go to the first class, as for the accuracy (``k = 1``). The result is 1 if C <= k.

    Args:
        probs: (N, C), N >= 1.
        labels: (N,) true classes.
        k: At least 1.

    >>> top_k_accuracy(np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]), np.array([1, 1]), 2)
    0.5
    """
    truth = probs[np.arange(len(labels)), labels][:, None]
    before = np.arange(probs.shape[1]) < labels[:, None]
    rank = ((probs > truth) | ((probs == truth) & before)).sum(axis=1)
    return float((rank < k).mean())


def confusion_matrix(
    probs: NDArray[np.floating[Any]], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how often each true class was predicted as each class.

    Args:
        probs: (N, C).
        labels: (N,) true classes.

    Returns:
        (C, C) counts, a row for each true class, a column for each predicted one.
    """
    num_classes = probs.shape[1]
    pairs = labels * num_classes + probs.argmax(axis=1)
    counts = np.bincount(pairs, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes).astype(np.int64)


def bootstrap_interval(
    correct: int, count: int, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile interval of an accuracy under resampling of its images.

    The number of correct images in a resample (with replacement) is binomial with the observed
    accuracy, so it is sampled instead of the images: the same distribution at a constant cost. The
    interval estimates the variation over test sets of this size, not over training runs; its width
    is 0 if no image or every image is correct.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.

    Args:
        correct: Number of correctly classified images.
        count: Number of all images, at least 1.
        level: Share of the resamples inside the interval, in (0, 1).
        resamples: Number of resamples.
        seed: Seed of a separate numpy generator; equal arguments give equal intervals.

    Returns:
        The lower and the upper end, in [0, 1].
    """
    samples = np.random.default_rng(seed).binomial(count, correct / count, resamples) / count
    lower, upper = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(lower), float(upper)


def balanced_bootstrap_interval(
    hits: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a balanced accuracy under resampling of its images.

    The images of each class are resampled separately; see `bootstrap_interval`. A class whose
    images are all correct, or all wrong, contributes no width.

    Args:
        hits: (C,) number of correctly classified images of each class.
        counts: (C,) number of all images of each class, at least 1.
        level: Share of the resamples inside the interval, in (0, 1).
        resamples: Number of resamples.
        seed: Seed of a separate numpy generator; equal arguments give equal intervals.
    """
    generator = np.random.default_rng(seed)
    total = np.zeros(resamples)
    for hit, count in zip(hits.tolist(), counts.tolist(), strict=True):
        total += generator.binomial(count, hit / count, resamples) / count
    lower, upper = np.quantile(total / len(counts), [(1 - level) / 2, (1 + level) / 2])
    return float(lower), float(upper)


def paired_balanced_interval(
    ours: NDArray[np.bool_],
    theirs: NDArray[np.bool_],
    labels: NDArray[np.int64],
    level: float = 0.95,
) -> tuple[float, float, float]:
    """Return the difference of two balanced accuracies on the same images, and its interval.

    Combines the `paired_interval` of each class by the squares of their one-sided widths, which
    are those of a mean of independent estimates.

    Source: Zou and Donner, Construction of confidence limits about effect measures: a general
    approach, Statistics in Medicine 2008 (MOVER).

    Args:
        ours: (N,) True for correctly classified images, N >= 1.
        theirs: (N,) the same for the other classifier.
        labels: (N,) true classes.
        level: Confidence level, in (0, 1).

    Returns:
        The difference (ours minus theirs) and the lower and upper ends.
    """
    of_classes = [labels == label for label in np.unique(labels)]
    ends = np.array([paired_interval(ours[of], theirs[of], level) for of in of_classes])
    mean = float(ends[:, 0].mean())
    below, above = (
        math.sqrt(float(((ends[:, 0] - ends[:, side]) ** 2).sum())) / len(ends) for side in (1, 2)
    )
    return mean, max(-1.0, mean - below), min(1.0, mean + above)


def paired_interval(
    ours: NDArray[np.bool_], theirs: NDArray[np.bool_], level: float = 0.95
) -> tuple[float, float, float]:
    """Return the difference of two accuracies on the same images, and its interval.

    Computes the hybrid score interval with continuity-corrected correlation, which stays in
    [-1, 1] and has a positive width even if both classifiers agree on every image.

    Source: Newcombe, Improved confidence intervals for the difference between binomial proportions
    based on paired data, Statistics in Medicine 1998, method 10.

    Args:
        ours: (N,) True for correctly classified images, N >= 1.
        theirs: (N,) the same for the other classifier.
        level: Confidence level, in (0, 1).

    Returns:
        The difference (ours minus theirs) and the lower and upper ends.
    """
    n = len(ours)
    both, only_ours = int((ours & theirs).sum()), int((ours & ~theirs).sum())
    only_theirs = int((~ours & theirs).sum())
    neither = n - both - only_ours - only_theirs
    z = NormalDist().inv_cdf((1 + level) / 2)
    (p1, l1, u1), (p2, l2, u2) = (_wilson(int(x.sum()), n, z) for x in (ours, theirs))
    product = (both + only_ours) * (only_theirs + neither)
    product *= (both + only_theirs) * (only_ours + neither)
    excess = float(both * neither - only_ours * only_theirs)
    if excess > 0:
        excess = max(excess - n / 2, 0)
    phi = excess / math.sqrt(product) if product else 0.0

    def length(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    difference = p1 - p2
    return (
        difference,
        max(-1.0, difference - length(p1 - l1, u2 - p2)),
        min(1.0, difference + length(u1 - p1, p2 - l2)),
    )


def _wilson(hits: int, n: int, z: float) -> tuple[float, float, float]:
    """Return a proportion and its score interval (Wilson, JASA 1927)."""
    p = hits / n
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return p, (center - half) / scale, (center + half) / scale
