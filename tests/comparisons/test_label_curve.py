"""How many labels of one method are worth as much as those of another."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_run

from ssl_toolkit.comparisons.gather import gather
from ssl_toolkit.comparisons.label_curve import crossing, equivalent, isotonic
from ssl_toolkit.comparisons.schema import Comparison, RunLocation

COUNTS = (1, 2, 4, 8)


def over(
    *means: float, noise: tuple[float, ...] = (-0.01, 0.0, 0.01)
) -> dict[int, dict[int, float]]:
    """Return scores of seeds around means, by number of labels."""
    return {
        count: {seed: mean + shift for seed, shift in enumerate(noise)}
        for count, mean in zip(COUNTS, means, strict=True)
    }


def test_a_number_is_interpolated_over_the_logarithm() -> None:
    other = over(0.2, 0.4, 0.6, 0.8)
    same = equivalent(over(0.5, 0.5, 0.5, 0.5), 1, other)
    assert same.equivalent == pytest.approx(2 * math.sqrt(2))
    assert equivalent(other, 4, other).equivalent == pytest.approx(4)
    # The same seeds have the same shift in both, so that the number doesn't vary.
    assert same.interval is None


def test_beyond_the_range_nothing_is_extrapolated() -> None:
    other = over(0.2, 0.4, 0.6, 0.8)
    above = equivalent(over(0.9, 0.9, 0.9, 0.9), 1, other)
    assert above == (None, "above", None)
    assert equivalent(over(0.1, 0.1, 0.1, 0.1), 8, other) == (None, "below", None)


def test_an_interval_has_the_number_in_it_and_may_end_outside() -> None:
    method = {1: {0: 0.70, 1: 0.82, 2: 0.75}}
    other = over(0.2, 0.4, 0.6, 0.8, noise=(0.0, 0.01, -0.02))
    found = equivalent(method, 1, other)
    assert found.equivalent is not None
    assert found.interval is not None
    lower, upper = found.interval
    assert lower is not None
    assert 4 < lower < found.equivalent < 8
    assert upper is None


def test_more_seeds_make_an_interval_narrower() -> None:
    draw = np.random.default_rng(1)

    def width(seeds: int) -> float:
        noise = draw.normal(0, 0.02, size=(2, seeds))
        method = {1: dict(enumerate((0.5 + noise[0]).tolist()))}
        found = equivalent(method, 1, over(0.1, 0.4, 0.7, 0.9, noise=tuple(noise[1].tolist())))
        assert found.interval is not None
        assert found.interval[0] is not None
        assert found.interval[1] is not None
        return found.interval[1] - found.interval[0]

    assert width(40) < width(4)


def test_one_seed_has_no_interval() -> None:
    other = over(0.2, 0.4, 0.6, 0.8, noise=(0.0,))
    assert equivalent({1: {0: 0.5}}, 1, other).interval is None


@pytest.mark.slow
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Noise of labels that both methods share, and noise of each run; five seeds."""
    draw = np.random.default_rng(0)
    other_means, truth, hits, trials = (0.3, 0.5, 0.7, 0.9), 2 * math.sqrt(2), 0, 200
    for _ in range(trials):
        labels = draw.normal(0, 0.03, size=5)
        noise = draw.normal(0, 0.02, size=(5, 5))
        method = {2: dict(enumerate((0.6 + labels + noise[4]).tolist()))}
        other = {
            count: dict(enumerate((mean + labels + noise[k]).tolist()))
            for k, (count, mean) in enumerate(zip(COUNTS, other_means, strict=True))
        }
        interval = equivalent(method, 2, other).interval
        assert interval is not None
        lower, upper = interval
        hits += (lower or 0) <= truth <= (upper or math.inf)
    assert 0.9 <= hits / trials <= 0.99


def test_a_curve_with_noise_is_made_monotone() -> None:
    other = over(0.2, 0.6, 0.5, 0.8)
    assert isotonic(np.array([0.2, 0.6, 0.5, 0.8])).tolist() == pytest.approx(
        [0.2, 0.55, 0.55, 0.8]
    )
    found = equivalent(over(0.4, 0.4, 0.4, 0.4), 1, other)
    assert found.equivalent == pytest.approx(2 ** ((0.4 - 0.2) / 0.35))


def test_failed_runs_cost_only_their_own_seed() -> None:
    other = over(0.2, 0.4, 0.6, 0.8)
    del other[2][1], other[8][0]
    found = equivalent(over(0.5, 0.5, 0.5, 0.5), 1, other)
    assert found.equivalent == pytest.approx(2 * math.sqrt(2), rel=0.1)
    assert found.interval is not None


def test_methods_cross_where_their_means_are_equal() -> None:
    late, early = over(0.2, 0.4, 0.6, 0.8), over(0.3, 0.4 + 0.05, 0.55, 0.6)
    found = crossing(late, early)
    assert found is not None
    assert found.equivalent == pytest.approx(2 * math.sqrt(2))
    assert crossing(early, late) is None
    assert crossing(late, late) is None
    assert crossing(over(0.9, 0.9, 0.9, 0.9), early) is None
    assert crossing(over(0.2, 0.5, 0.5, 0.8), early) is None, "it crosses three times"


@pytest.fixture
def curve(tmp_path: Path) -> Comparison:
    """Three methods at three numbers of labels on three seeds; one run is missing."""
    runs = []
    gains = {"supervised": 0.0, "fixmatch": 0.05, "fully_supervised": 0.2}
    for count, mean in zip((1, 2, 4), (0.4, 0.5, 0.6), strict=True):
        for method, gain in gains.items():
            for seed in range(3):
                path = tmp_path / f"{method}{count}{seed}"
                accuracy = mean + gain + 0.01 * seed + (0.004 * seed**2 if gain else 0)
                if (method, count, seed) != ("fixmatch", 4, 2):
                    config = {"labels_per_class": count}
                    record = {"split": f"{count}-{seed}", "initial_weights": f"{count}-{seed}"}
                    fake_run(path, algo=method, seed=seed, accuracy=accuracy, config=config, record=record)  # fmt: skip  # noqa: E501
                name = f"{method}, {count} per class"
                runs.append(RunLocation(name, seed, path, method, method, count))
    allow = ["labels_per_class"]
    return gather(runs, name="toy", baseline="supervised", allow=allow, curve="labels_per_class")


def test_rows_are_compared_at_equal_numbers_of_labels(curve: Comparison) -> None:
    assert curve.methods == ("supervised", "fixmatch", "fully_supervised")
    for row in curve.rows:
        assert row.overrides == {}, "a number of labels is no permission"
        if row.method == "supervised":
            assert row.difference is None
        else:
            assert row.difference is not None
            gain = 0.05 if row.method == "fixmatch" else 0.2
            assert row.difference.values[0] == pytest.approx(gain)
    fixmatch = [row.difference for row in curve.rows if row.method == "fixmatch"]
    assert [one.count for one in fixmatch if one] == [3, 3, 2]
    # Holm's family is one number of labels; the upper bound is not in it.
    assert all(one and one.adjusted_p_value == one.p_value for one in fixmatch)


def test_what_labels_are_worth(curve: Comparison) -> None:
    assert curve.curve is not None
    assert curve.curve.counts == (1, 2, 4)
    worth = {(w.method, w.labels, w.other): w for w in curve.curve.worth}
    assert worth["supervised", 1, "fixmatch"].outside == "below"
    assert worth["fully_supervised", 4, "supervised"].outside == "above"
    found = worth["fixmatch", 1, "supervised"]
    assert found.equivalent == pytest.approx(2 ** ((0.05 + 0.02 / 3) / 0.1), rel=0.01)
    assert curve.curve.crossings == ()
