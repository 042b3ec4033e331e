"""Label curves: how many labels of one method are worth as much as those of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ssl_toolkit.comparisons.curve_schema import Crossing, LabelCurve, Worth
from ssl_toolkit.comparisons.schema import Variant
from ssl_toolkit.config.label_counts import LabelKey

Scores = Mapping[int, Mapping[int, float]]
"""The scores of a method by number of labels, then by seed."""

RESAMPLES = 4000
"""Resamples of the seeds where there are too many to use all of them."""
_LEVEL = 0.95


def label_curve(rows: Sequence[Variant], key: LabelKey, score: str) -> LabelCurve:
    """Return what a label curve says about numbers of labels.

    Args:
        rows: Rows with a number of labels.
        key: The setting of these numbers.
        score: Name of the score that ranks.
    """
    methods: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows:
        if row.labels is not None and score in row.scores:
            methods.setdefault(row.method, {})[row.labels] = row.scores[score].values
    worth = [
        Worth(
            method=name,
            labels=count,
            other=other,
            **equivalent(scores, count, methods[other])._asdict(),
        )
        for name, other in permutations(methods, 2)
        if len(methods[other]) > 1
        for scores in [methods[name]]
        for count in scores
    ]
    crossings = [
        Crossing(method=better, other=other, labels=found.equivalent, interval=found.interval)
        for first, second in combinations(methods, 2)
        for better, other in ((first, second), (second, first))
        if (found := crossing(methods[better], methods[other])) and found.equivalent
    ]
    counts = sorted({row.labels for row in rows if row.labels is not None})
    return LabelCurve(
        key=key,
        counts=tuple(counts),
        score=score,
        worth=tuple(worth),
        crossings=tuple(crossings),
    )


class Estimate(NamedTuple):
    """A number of labels, which may be outside of the range that was measured."""

    equivalent: float | None
    """None if it is outside."""
    outside: Literal["", "below", "above"]
    """``below`` or ``above`` the range; empty for inside."""
    interval: tuple[float | None, float | None] | None
    """95 % interval; an end that is None is outside, below or above; None for one seed or equal
    resamples."""


def equivalent(scores: Scores, count: int, other: Scores) -> Estimate:
    """Return how many labels of another method give the mean score of some labels of this one.

    The other method's means are made monotone by isotonic regression, because more labels don't
    make a method worse except by noise, and interpolated over the logarithm of the number of
    labels. The number is the smallest that reaches the score. Nothing is extrapolated.

    The interval is that of the bootstrap over seeds. Both methods are resampled together, because
    a seed draws the same labels for both; the percentiles are those of Hesterberg's expanded
    percentile interval, which is wider for few seeds (with three, all resamples).

    Source: Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician
    2015; Barlow et al., Statistical Inference under Order Restrictions, 1972.

    Args:
        scores: Of this method; at least one at `count`.
        count: Number of labels of this method.
        other: Scores of the other method, with at least two numbers of labels.
    """
    counts = sorted(other)
    means = _Means([scores[count], *(other[k] for k in counts)])
    found = np.array(
        [_labels_at(row[0], counts, row[1:]) for row in (means.observed, *means.resampled)]
    )
    return _estimate(found, means.seeds)


def crossing(better: Scores, other: Scores) -> Estimate | None:
    """Return the number of labels above which a method is better, and below which it is worse.

    It is the point where the means are equal, interpolated over the logarithm of the number of
    labels, with an interval as in `equivalent`. A resample in which the method is better (or worse)
    everywhere counts as a crossing below (above) the range.

    Returns:
        None unless the means cross exactly once, in this direction.
    """
    counts = sorted(better.keys() & other.keys())
    if len(counts) < 2:
        return None
    means = _Means([*(better[k] for k in counts), *(other[k] for k in counts)])
    half = len(counts)

    def gains(row: NDArray[np.float64]) -> NDArray[np.float64]:
        return row[:half] - row[half:]

    signs = np.sign(gains(means.observed))
    if (np.diff(signs[signs != 0]) != 0).sum() != 1 or signs[signs != 0][0] > 0:
        return None
    found = [_zero(counts, gains(row)) for row in (means.observed, *means.resampled)]
    return _estimate(np.array(found), means.seeds)


class _Means:
    """Means over seeds of several lists of scores, as observed and in resamples of the seeds.

    A seed may lack some of the scores, those of failed runs. Resamples without any value for one of
    the means are left out.
    """

    def __init__(self, scores: Sequence[Mapping[int, float]]) -> None:
        seeds = sorted({seed for values in scores for seed in values})
        self.seeds = len(seeds)
        values = np.array([[of.get(seed, np.nan) for of in scores] for seed in seeds])
        present = (~np.isnan(values)).astype(np.float64)
        weights = np.concatenate([np.ones((1, self.seeds)), _resamples(self.seeds)])
        counts = weights @ present
        sums = weights @ np.nan_to_num(values)
        complete = (counts > 0).all(axis=1)
        # Rounded, so that means which are equal but for their last bits are equal.
        means = np.round(sums[complete] / counts[complete], 12)
        self.observed: NDArray[np.float64] = means[0]
        self.resampled: NDArray[np.float64] = means[1:]


def _resamples(count: int) -> NDArray[np.float64]:
    """Return how often each of some seeds is in each resample, (R, count); all if they are few."""
    if count == 1:
        return np.zeros((0, 1))
    if count**count <= RESAMPLES:
        drawn = np.array([*product(range(count), repeat=count)])
    else:
        drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    times: NDArray[np.float64] = (drawn[:, :, None] == np.arange(count)).sum(axis=1) * 1.0
    return times


def _estimate(found: NDArray[np.float64], seeds: int) -> Estimate:
    """Return the estimate, which is first among some numbers of labels, and its interval."""
    found = np.round(found, 9)
    first, resampled = float(found[0]), found[1:]
    interval = None
    if len(resampled):
        t = float(special.stdtrit(seeds - 1, (1 + _LEVEL) / 2))
        tail = float(special.ndtr(-math.sqrt(seeds / (seeds - 1)) * t))
        ends = np.quantile(resampled, [tail, 1 - tail], method="inverted_cdf")
        lower, upper = (float(end) if math.isfinite(end) else None for end in ends)
        if ends[0] != ends[1]:
            interval = lower, upper
    outside: Literal["", "below", "above"]
    outside = "" if math.isfinite(first) else "below" if first < 0 else "above"
    return Estimate(None if outside else first, outside, interval)


def _labels_at(score: float, counts: Sequence[int], means: NDArray[np.float64]) -> float:
    """Return where an increasing curve reaches a score; infinite outside of its range."""
    curve = isotonic(means)
    if score > curve[-1]:
        return math.inf
    if score < curve[0]:
        return -math.inf
    place = int(np.searchsorted(curve, score))
    if curve[place] == score:
        return float(counts[place])
    return _between(
        counts[place - 1], counts[place], score - curve[place - 1], curve[place] - score
    )


def _zero(counts: Sequence[int], gains: NDArray[np.float64]) -> float:
    """Return where differences first turn from negative to positive; infinite if they never do."""
    if (gains >= 0).all():
        return -math.inf
    for place in range(1, len(counts)):
        if gains[place - 1] < 0 <= gains[place]:
            return _between(counts[place - 1], counts[place], -gains[place - 1], gains[place])
    return math.inf if gains[-1] < 0 else -math.inf


def _between(first: int, second: int, from_first: float, to_second: float) -> float:
    """Return the number of labels between two, by distances on the scale of the logarithm."""
    share = from_first / (from_first + to_second)
    return float(first * (second / first) ** share)


def isotonic(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the closest increasing sequence in least squares, by pooling adjacent violators.

    >>> isotonic(np.array([1.0, 3.0, 2.0])).tolist()
    [1.0, 2.5, 2.5]
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (first, n), (second, m) = pools[-2:]
            pools[-2:] = [((first * n + second * m) / (n + m), n + m)]
    return np.concatenate([np.full(size, mean) for mean, size in pools])
