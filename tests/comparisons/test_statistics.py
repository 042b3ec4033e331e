"""Means, intervals and tests of a comparison, against scipy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from ssl_toolkit.comparisons.schema import SCORES, upper_bound
from ssl_toolkit.comparisons.statistics import holm, paired_difference, score_stats


def by_seed(values: object) -> dict[int, float]:
    return {seed: float(value) for seed, value in enumerate(np.asarray(values))}


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_the_interval_is_that_of_t_on_the_logit_scale(count: int) -> None:
    values = np.random.default_rng(count).normal(0.9, 0.02, count)
    got = score_stats(by_seed(values))
    assert got.count == count
    mean = values.mean()
    assert got.mean == pytest.approx(mean)
    assert got.deviation == pytest.approx(values.std(ddof=1))
    error = stats.sem(values) / (mean * (1 - mean))
    expected = special.expit(stats.t.interval(0.95, count - 1, special.logit(mean), error))
    assert got.interval == pytest.approx(tuple(expected))


def test_by_hand() -> None:
    got = score_stats({0: 0.90, 1: 0.92, 2: 0.94})
    assert got.mean == pytest.approx(0.92)
    assert got.deviation == pytest.approx(0.02)
    # The table's t for 2 degrees of freedom; the slope of the logit at 0.92 is 1 / (0.92 * 0.08).
    half = 4.302653 * 0.02 / math.sqrt(3) / (0.92 * 0.08)
    odds = 0.92 / 0.08
    expected = [odds * factor / (1 + odds * factor) for factor in (math.exp(-half), math.exp(half))]
    assert got.interval == pytest.approx(tuple(expected), abs=1e-6)
    assert got.interval == pytest.approx((0.8541, 0.9576), abs=5e-5)
    other = score_stats({0: 0.90, 1: 0.92, 2: 0.94}, level=0.5).interval
    assert other is not None
    assert got.interval[0] < other[0] < 0.92 < other[1] < got.interval[1]


@pytest.mark.parametrize(
    "values",
    [(0.9603, 1.0), (0.8, 0.88), (1.0, 0.0), (0.0, 0.001), (1.0,) * 29 + (0.0,), (0.02, 0.98, 1.0)],
)
def test_no_interval_leaves_the_range_of_its_number(values: tuple[float, ...]) -> None:
    lower, upper = score_stats(by_seed(values)).interval or (math.nan, math.nan)
    assert 0 < lower < np.mean(values) < upper < 1
    low, high = score_stats(by_seed(values), highest=math.inf).interval or (math.nan, math.nan)
    assert 0 < low < np.mean(values) < high < math.inf
    for other in (by_seed(1 - np.asarray(values)), by_seed(values[::-1])):
        result = paired_difference(by_seed(values), other)
        assert result is not None
        bounds = result.interval or (0.0, 0.0)
        assert -1 <= bounds[0] <= result.mean <= bounds[1] <= 1


def test_errors_have_the_mirrored_interval() -> None:
    values = np.array([0.93, 0.99, 0.98])
    lower, upper = score_stats(by_seed(values)).interval or (math.nan, math.nan)
    assert score_stats(by_seed(1 - values)).interval == pytest.approx((1 - upper, 1 - lower))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize(
    ("mean", "deviation", "least"),
    # Near the end, where the distribution is skewed, the plain t interval holds 88 % of the means.
    [(0.5, 0.05, 0.94), (0.86, 0.03, 0.94), (0.95, 0.02, 0.94), (0.99, 0.01, 0.925)],
)
def test_intervals_have_their_nominal_coverage(
    count: int, mean: float, deviation: float, least: float
) -> None:
    size = mean * (1 - mean) / deviation**2 - 1
    drawn = np.random.default_rng(0).beta(mean * size, (1 - mean) * size, (4000, count))
    held = 0
    for values in drawn.tolist():
        lower, upper = score_stats(dict(enumerate(values))).interval or (math.nan, math.nan)
        held += lower <= mean <= upper
    assert least <= held / len(drawn) <= 0.965


def test_only_what_is_a_share_ends_at_one() -> None:
    assert {score for score in SCORES if upper_bound(score) == 1} == {
        *(f"test.{name}" for name in ("accuracy", "balanced_accuracy", "macro_f1", "ece")),
        "validation.accuracy",
        "validation.balanced_accuracy",
        *("test.map", "test.micro_f1", "test.exact", "validation.map"),
    }


def test_one_seed_has_no_spread() -> None:
    got = score_stats({7: 0.9})
    assert (got.mean, got.deviation, got.interval, got.count) == (0.9, None, None, 1)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_equal_values_have_no_interval(value: float) -> None:
    got = score_stats({0: value, 1: value, 2: value})
    assert (got.mean, got.deviation, got.interval) == (pytest.approx(value), 0, None)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_paired_test_equals_scipy(count: int) -> None:
    generator = np.random.default_rng(count)
    base = generator.normal(0.8, 0.05, count)
    ours = base + generator.normal(0.02, 0.01, count)
    got = paired_difference(by_seed(ours), by_seed(base))
    assert got is not None
    expected = stats.ttest_rel(ours, base)
    assert got.p_value == pytest.approx(expected.pvalue, rel=1e-6)
    interval = expected.confidence_interval(0.95)
    assert got.interval == pytest.approx((interval.low, interval.high))
    assert got.mean == pytest.approx((ours - base).mean())


@pytest.mark.parametrize("shift", [0.018, 0.0227, 0.0228, 0.03])
def test_the_interval_of_a_difference_contains_0_if_the_test_is_not_significant(
    shift: float,
) -> None:
    noise = np.array([-0.01, 0.002, 0.008])
    got = paired_difference(by_seed(0.8 + shift + noise), by_seed([0.8] * 3))
    assert got is not None
    assert got.interval is not None
    assert got.p_value is not None
    assert (got.interval[0] > 0) == (got.p_value < 0.05)


def test_pairs_are_those_of_common_seeds() -> None:
    got = paired_difference({0: 0.9, 1: 0.8, 2: 0.1}, {1: 0.7, 0: 0.85, 3: 0.2})
    assert got is not None
    assert got.values == {0: 0.05, 1: 0.1}
    assert paired_difference({0: 0.9}, {1: 0.9}) is None


def test_equal_differences_have_no_p_value() -> None:
    # Equal on paper; in floating point they differ in the last bits, and p would be about 1e-15.
    ours, base = {0: 0.93, 1: 0.95, 2: 0.97}, {0: 0.90, 1: 0.92, 2: 0.94}
    assert len({ours[seed] - base[seed] for seed in ours}) > 1
    got = paired_difference(ours, base)
    assert got is not None
    assert got.p_value is None
    assert got.deviation == 0
    assert got.interval is None
    one = paired_difference({0: 0.9}, {0: 0.8})
    assert one is not None
    assert one.p_value is None
    assert one.deviation is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02]) == [0.02]
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
