"""Means over seeds, paired differences, and their uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import special

from ssl_toolkit.comparisons.schema import Difference, ScoreStats


def score_stats(
    values: Mapping[int, float], level: float = 0.95, highest: float = 1.0
) -> ScoreStats:
    """Return mean, sample standard deviation and interval of one score over seeds.

    The interval is of the mean: Student's t on the scale of the logit, ``logit(m) ± t(n - 1) se /
    (m (1 - m))`` transformed back, with ``se = sd / sqrt(n)`` (delta method). So it cannot leave
    the range of the score, and near its ends it is as asymmetric as what is estimated. Away from
    the ends it is the plain t interval. It assumes that the seeds are independent draws; it is wide
    for few seeds (t is 12.7 for two). It covers what varies with the seed (split, initial weights,
    order and augmentation), not another test set.

    Source: Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number of
    Positive Counts Estimated from Survey Data, Survey Methodology 1998 (there for clusters, here
    for seeds); ``xlogit`` of R's ``survey::svyciprop``.

    Args:
        values: By seed, at least one, in [0, `highest`].
        level: Share of such intervals that contain the mean, in (0, 1).
        highest: Upper bound of the score; infinity for none, and the scale is then the logarithm.

    Returns:
        Without deviation and interval for one seed; without interval if all values are equal,
        because the noise can't be estimated then.
    """
    numbers = [*values.values()]
    mean = statistics.fmean(numbers)
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    interval = None
    if deviation and 0 < mean < highest:
        half = _half_width(deviation, len(numbers), level) * (1 / mean + 1 / (highest - mean))
        odds = mean / (1 - mean / highest)
        lower, upper = odds * math.exp(-half), odds * math.exp(half)
        interval = lower / (1 + lower / highest), upper / (1 + upper / highest)
    return ScoreStats(values=dict(values), mean=mean, deviation=deviation, interval=interval)


def paired_difference(row: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Return the paired differences ``row - baseline`` on the common seeds, and their t-test.

    Pairing removes what a seed does to both alike: the split, the initial weights, the order. The
    two-sided test assumes independent, about normal differences; with few seeds it finds large
    effects only, and a large p-value is no sign of equality. The p-value is of this pair alone;
    see `holm` for several. The interval is that of the same t, so that it excludes 0 exactly where
    p is below 0.05; it ends at -1 and 1, the limits of a difference.

    Source: Student, The Probable Error of a Mean, Biometrika 1908.

    Args:
        row: Values in [0, 1] by seed.
        baseline: Values in [0, 1] by seed.

    Returns:
        None without a common seed; without interval and p-value for one seed and for equal
        differences, because the noise can't be estimated then.
    """
    # Rounded, so that differences which are equal but for their last bit are equal.
    values = {seed: round(row[seed] - baseline[seed], 12) for seed in row if seed in baseline}
    if not values:
        return None
    mean = statistics.fmean(values.values())
    deviation = statistics.stdev(values.values()) if len(values) > 1 else None
    interval, p_value = None, None
    if deviation:
        half = _half_width(deviation, len(values), 0.95)
        interval = max(-1.0, mean - half), min(1.0, mean + half)
        t = mean / (deviation / math.sqrt(len(values)))
        p_value = float(2 * special.stdtr(len(values) - 1, -abs(t)))
    return Difference(
        values=values, mean=mean, deviation=deviation, interval=interval, p_value=p_value
    )


def _half_width(deviation: float, count: int, level: float) -> float:
    """Return half the width of Student's t interval of a mean."""
    t: float = special.stdtrit(count - 1, (1 + level) / 2)
    return float(t * deviation / math.sqrt(count))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number: the chance of any false rejection below a is at most a.

    Valid for dependent tests, such as those against one baseline.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scand. J. Stat. 1979.

    Args:
        p_values: P-values of a family of tests.

    Returns:
        In the same order, each at least as large and at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted
