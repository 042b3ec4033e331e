"""The seconds until a run is as accurate as a level, from plain rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_runs import fake_run

from ssl_toolkit.comparisons.gather import gather
from ssl_toolkit.comparisons.schema import Comparison, RunLocation
from ssl_toolkit.comparisons.time_to_accuracy import last_value, seconds_to_accuracy

ROWS = [
    {"step": 1, "seconds": 1.0, "train.coverage": 0.1},
    {"step": 2, "seconds": 2.5, "validation.accuracy": 0.6, "train.coverage": 0.4},
    {"step": 3, "seconds": 4.0, "validation.accuracy": 0.9},
    {"step": 4, "seconds": 5.5, "validation.accuracy": 0.7},
]


@pytest.mark.parametrize(
    ("level", "seconds"), [(0.0, 2.5), (0.6, 2.5), (0.61, 4.0), (0.9, 4.0), (0.91, None)]
)
def test_the_first_evaluation_at_or_above_the_level(level: float, seconds: float | None) -> None:
    assert seconds_to_accuracy(ROWS, level) == seconds


def test_a_run_without_evaluations_reaches_nothing() -> None:
    assert seconds_to_accuracy(ROWS[:1], 0.0) is None


def test_the_last_value() -> None:
    assert last_value(ROWS, "train.coverage") == 0.4
    assert last_value(ROWS, "train.loss") is None


def compared(folder: Path, rows: dict[str, tuple[str, float]], **options: object) -> Comparison:
    """Compare rows of (algorithm, final accuracy) that gain a tenth of it in each second."""
    locations = []
    for row, (algo, final) in rows.items():
        for seed in (0, 1):
            path = fake_run(folder / row / str(seed), algo=algo, seed=seed, accuracy=final)
            lines = [
                {"format": 1, "step": k, "seconds": k + seed, "validation.accuracy": final * k / 10}
                for k in range(1, 11)
            ]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (path / "metrics.jsonl").write_text(text, encoding="utf-8")
            locations.append(RunLocation(row, seed, path))
    return gather(locations, name="toy", **options)  # type: ignore[arg-type]


def test_levels_are_shares_of_the_upper_bound(tmp_path: Path) -> None:
    rows = {"low": ("supervised", 0.45), "high": ("fixmatch", 0.9)}
    made = compared(tmp_path, rows | {"bound": ("fully_supervised", 0.99)})
    assert made.levels_of == "upper bound"
    low, high, bound = ([*row.reached] for row in made.rows)
    assert [one.level for one in bound] == pytest.approx([0.9 * 0.99, 0.95 * 0.99])
    assert [one.name for one in high] == ["seconds_to_90", "seconds_to_95"]
    assert [one.values for one in low] == [{}, {}]
    assert low[0].mean is None
    assert high[0].values == {0: 10.0, 1: 11.0}
    assert high[0].mean == 10.5


def test_without_a_bound_the_best_row_sets_the_levels(tmp_path: Path) -> None:
    rows = {"low": ("supervised", 0.45), "high": ("fixmatch", 0.9)}
    made = compared(tmp_path, rows)
    assert made.levels_of == "best row"
    assert made.rows[1].reached[0].level == pytest.approx(0.81)
    alone = compared(tmp_path / "alone", {"low": rows["low"]})
    assert (alone.levels_of, alone.rows[0].reached) == ("", ())


@pytest.mark.parametrize("missing", [True, False])
def test_a_row_with_an_unknown_time_has_none(tmp_path: Path, missing: bool) -> None:
    rows = {"low": ("supervised", 0.45), "high": ("fixmatch", 0.9)}
    compared(tmp_path, rows)
    log = tmp_path / "high/0/metrics.jsonl"
    lines = log.read_text().replace('"seconds"', '"other"')
    log.unlink()
    if not missing:
        log.write_text(lines)
    locations = [
        RunLocation(row, seed, tmp_path / row / str(seed)) for row in rows for seed in (0, 1)
    ]
    low, high = gather(locations, name="toy").rows
    assert len(low.reached) == 2
    assert high.reached == ()


def test_given_levels_replace_the_shares(tmp_path: Path) -> None:
    made = compared(tmp_path, {"low": ("supervised", 0.5)}, levels=[0.25, 0.75])
    low, high = made.rows[0].reached
    assert (low.name, low.fraction, low.values) == ("seconds_to_accuracy_0.25", None, {0: 5, 1: 6})
    assert (high.values, high.mean) == ({}, None)
