"""Means, intervals and tests of a comparison, against scipy and by hand."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from scipy import stats

from ssl_toolkit.results import statistics
from ssl_toolkit.results.statistics import difference, has_scipy, holm, spread


def by_seed(values: object) -> dict[int, float]:
    return {seed: float(value) for seed, value in enumerate(np.asarray(values))}


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_the_interval_is_scipys(count: int) -> None:
    values = np.random.default_rng(count).normal(0.9, 0.02, count)
    got = spread(by_seed(values))
    assert got.count == count
    assert got.mean == pytest.approx(values.mean())
    assert got.deviation == pytest.approx(values.std(ddof=1))
    expected = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert got.interval == pytest.approx(expected)


def test_by_hand() -> None:
    got = spread({0: 0.90, 1: 0.92, 2: 0.94})
    assert got.mean == pytest.approx(0.92)
    assert got.deviation == pytest.approx(0.02)
    half = 4.302653 * 0.02 / math.sqrt(3)  # the table's t for 2 degrees of freedom
    assert got.interval == pytest.approx((0.92 - half, 0.92 + half), abs=1e-6)
    other = spread({0: 0.90, 1: 0.92, 2: 0.94}, level=0.5).interval
    assert other is not None
    assert other[1] - other[0] < half


def test_one_seed_has_no_spread() -> None:
    got = spread({7: 0.9})
    assert (got.mean, got.deviation, got.interval, got.count) == (0.9, None, None, 1)


def test_equal_values_have_no_width() -> None:
    got = spread({0: 0.1, 1: 0.1, 2: 0.1})
    assert got.deviation == 0
    assert got.interval == (got.mean, got.mean)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_paired_test_is_scipys(count: int) -> None:
    generator = np.random.default_rng(count)
    base = generator.normal(0.8, 0.05, count)
    ours = base + generator.normal(0.02, 0.01, count)
    got = difference(by_seed(ours), by_seed(base))
    assert got is not None
    expected = stats.ttest_rel(ours, base)
    assert got.p_value == pytest.approx(expected.pvalue, rel=1e-6)
    interval = expected.confidence_interval(0.95)
    assert got.spread.interval == pytest.approx((interval.low, interval.high))
    assert got.spread.mean == pytest.approx((ours - base).mean())


def test_pairs_are_those_of_common_seeds() -> None:
    got = difference({0: 0.9, 1: 0.8, 2: 0.1}, {1: 0.7, 0: 0.85, 3: 0.2})
    assert got is not None
    assert got.spread.values == {0: 0.05, 1: 0.1}
    assert difference({0: 0.9}, {1: 0.9}) is None


def test_equal_differences_have_no_p_value() -> None:
    # Equal on paper; in floating point they differ in the last bits, and p would be about 1e-15.
    ours, base = {0: 0.93, 1: 0.95, 2: 0.97}, {0: 0.90, 1: 0.92, 2: 0.94}
    assert len({ours[seed] - base[seed] for seed in ours}) > 1
    got = difference(ours, base)
    assert got is not None
    assert got.p_value is None
    assert got.spread.deviation == 0
    one = difference({0: 0.9}, {0: 0.8})
    assert one is not None
    assert one.p_value is None
    assert one.spread.deviation is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02]) == [0.02]
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    statistics._special.cache_clear()
    try:
        assert not has_scipy()
        got = spread({0: 0.9, 1: 0.8})
        assert got.deviation is not None
        assert got.interval is None
        found = difference({0: 0.9, 1: 0.8}, {0: 0.7, 1: 0.5})
        assert found is not None
        assert found.p_value is None
    finally:
        monkeypatch.undo()
        statistics._special.cache_clear()
    assert has_scipy()
