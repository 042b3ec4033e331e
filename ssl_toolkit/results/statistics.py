"""Means over seeds and paired differences, and how sure they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ssl_toolkit.results.comparison import Difference, Spread

WITHOUT_SCIPY = (
    "no 95 % intervals and no p-values: they need scipy, pip install 'ssl-toolkit[report]'"
)


def spread(values: Mapping[int, float], level: float = 0.95) -> Spread:
    """Mean, sample standard deviation and Student-t interval of one number over seeds.

    The interval is of the mean, ``mean ± t(n - 1) sd / sqrt(n)``. It assumes that the seeds are
    independent draws and the number is about normal over them; it is wide for few seeds (for two
    the factor is 12.7 / sqrt(2)), is not cut at the ends of a scale, and has no width where all
    values are equal, which says little. What moves with a seed is what it speaks of: split,
    initial weights, order and augmentation, not another test set.

    Source: Student, The Probable Error of a Mean, Biometrika 1908.

    Args:
        values: by seed, at least one, finite.
        level: share of such intervals that hold the mean, in (0, 1).

    Returns:
        Without deviation and interval for one seed, without interval where scipy is missing.
    """
    numbers = [*values.values()]
    mean = statistics.fmean(numbers)
    if len(numbers) < 2:
        return Spread(dict(values), mean, None, None)
    deviation = statistics.stdev(numbers)
    special = _special()
    if special is None:
        return Spread(dict(values), mean, deviation, None)
    factor = float(special.stdtrit(len(numbers) - 1, (1 + level) / 2))
    half = factor * deviation / math.sqrt(len(numbers))
    return Spread(dict(values), mean, deviation, (mean - half, mean + half))


def difference(row: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Paired differences ``row - baseline`` on the seeds that both have, and their t-test.

    Pairing removes what a seed does to both alike: the split, the initial weights, the order. The
    two-sided test assumes independent, about normal differences; with few seeds it finds large
    effects only, and a large p-value is no sign of equality. The p-value stands for this pair
    alone; see `holm` for several.

    Args:
        row: values by seed.
        baseline: values by seed.

    Returns:
        None without a common seed; without p-value for one seed, for equal differences (nothing
        to estimate the noise from), or where scipy is missing.
    """
    # Rounded, so that differences which are equal but for their last bit are equal.
    both = {seed: round(row[seed] - baseline[seed], 12) for seed in row if seed in baseline}
    if not both:
        return None
    made = spread(both)
    special = _special()
    if special is None or not made.deviation:
        return Difference(made, None)
    t = made.mean / (made.deviation / math.sqrt(made.count))
    return Difference(made, float(2 * special.stdtr(made.count - 1, -abs(t))))


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


def has_scipy() -> bool:
    """Whether intervals and p-values can be computed."""
    return _special() is not None


@cache
def _special() -> Any:
    try:
        from scipy import special
    except ImportError:
        return None
    return special
