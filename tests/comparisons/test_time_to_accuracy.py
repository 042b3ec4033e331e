"""The seconds until a run is as accurate as a level, from plain rows."""

from __future__ import annotations

import pytest

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
