"""Means over seeds and paired differences, and how sure they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy import special

from ssl_toolkit.comparisons.types import Difference, ScoreStats


def spread(values: Mapping[int, float], level: float = 0.95, highest: float = 1.0) -> ScoreStats:
    """Mean, sample standard deviation and interval of one number over seeds.

    The interval is of the mean: Student's t on the scale of the logit, ``logit(m) ± t(n - 1) se /
    (m (1 - m))`` transformed back, with ``se = sd / sqrt(n)`` (delta method). So it cannot leave
    the range of the number, and near its ends it is as asymmetric as what is estimated. Away from
    the ends it is the plain t interval. It assumes that the seeds are independent draws; it is wide
    for few seeds (t is 12.7 for two). What moves with a seed is what it speaks of: split, initial
    weights, order and augmentation, not another test set.

    Source: Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number of
    Positive Counts Estimated from Survey Data, Survey Methodology 1998 (there for clusters, here
    for seeds); ``xlogit`` of R's ``survey::svyciprop``.

    Args:
        values: by seed, at least one, in [0, `highest`].
        level: share of such intervals that hold the mean, in (0, 1).
        highest: end of the number's range; infinity for one without, and the scale is then the
            logarithm.

    Returns:
        Without deviation and interval for one seed; without interval where all values are equal,
        as there is nothing to estimate the noise from.
    """
    numbers = [*values.values()]
    mean = statistics.fmean(numbers)
    if len(numbers) < 2:
        return ScoreStats(dict(values), mean, None, None)
    deviation = statistics.stdev(numbers)
    if not deviation or not 0 < mean < highest:
        return ScoreStats(dict(values), mean, deviation, None)
    half = _half(deviation, len(numbers), level) * (1 / mean + 1 / (highest - mean))
    odds = mean / (1 - mean / highest)
    lower, upper = odds * math.exp(-half), odds * math.exp(half)
    interval = lower / (1 + lower / highest), upper / (1 + upper / highest)
    return ScoreStats(dict(values), mean, deviation, interval)


def difference(row: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Paired differences ``row - baseline`` on the seeds that both have, and their t-test.

    Pairing removes what a seed does to both alike: the split, the initial weights, the order. The
    two-sided test assumes independent, about normal differences; with few seeds it finds large
    effects only, and a large p-value is no sign of equality. The p-value stands for this pair
    alone; see `holm` for several. The interval is that of the same t, so that it leaves out 0
    exactly where p is below 0.05; it ends at -1 and 1, beyond which no difference lies.

    Source: Student, The Probable Error of a Mean, Biometrika 1908.

    Args:
        row: values in [0, 1] by seed.
        baseline: values in [0, 1] by seed.

    Returns:
        None without a common seed; without interval and p-value for one seed and for equal
        differences (nothing to estimate the noise from).
    """
    # Rounded, so that differences which are equal but for their last bit are equal.
    both = {seed: round(row[seed] - baseline[seed], 12) for seed in row if seed in baseline}
    if not both:
        return None
    mean = statistics.fmean(both.values())
    deviation = statistics.stdev(both.values()) if len(both) > 1 else None
    if not deviation:
        return Difference(ScoreStats(both, mean, deviation, None), None)
    half = _half(deviation, len(both), 0.95)
    interval = max(-1.0, mean - half), min(1.0, mean + half)
    t = mean / (deviation / math.sqrt(len(both)))
    p_value = float(2 * special.stdtr(len(both) - 1, -abs(t)))
    return Difference(ScoreStats(both, mean, deviation, interval), p_value)


def _half(deviation: float, count: int, level: float) -> float:
    """Half the width of Student's t interval of a mean."""
    t: float = special.stdtrit(count - 1, (1 + level) / 2)
    return float(t * deviation / math.sqrt(count))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number: rejecting those below a gives one false hit in a 1/a.

    Holds for tests that depend on each other, as those against one baseline do.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scand. J. Stat. 1979.

    Args:
        p_values: of a family of tests.

    Returns:
        In the same order, each at least as large and at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, p_values[place] * (len(p_values) - done)))
        adjusted[place] = highest
    return adjusted
