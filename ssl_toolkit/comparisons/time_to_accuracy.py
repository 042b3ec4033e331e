"""The seconds of training after which runs are as accurate as a level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ssl_toolkit.comparisons.schema import ComparedRun, Variant
from ssl_toolkit.comparisons.time_schema import LevelsOf, Reached
from ssl_toolkit.engine.logged_metrics import VALIDATION_ACCURACY
from ssl_toolkit.errors import ToolkitError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import metric_rows

SCORE: str = VALIDATION_ACCURACY.name
FRACTIONS: tuple[float, ...] = (0.90, 0.95)
"""Shares of the validation accuracy of the upper bound, or of the best row."""


def seconds_to_accuracy(rows: Iterable[Mapping[str, float]], level: float) -> float | None:
    """Return the seconds of the first evaluation whose validation accuracy is at least a level.

    A run counts from its first step, with its evaluations and without preparing its data. Later
    evaluations may be below the level again. The result is as coarse as the evaluations are rare.

    Args:
        rows: Rows of ``metrics.jsonl``, in their order.
        level: Accuracy in [0, 1].

    Returns:
        Seconds, or None if no evaluation reached the level.

    >>> rows = [{"seconds": 2, "validation.accuracy": 0.5}, {"seconds": 4}]
    >>> seconds_to_accuracy([*rows, {"seconds": 6, "validation.accuracy": 0.9}], 0.8)
    6
    """
    return next((row["seconds"] for row in rows if row.get(SCORE, -1.0) >= level), None)


def last_value(rows: Iterable[Mapping[str, float]], metric: str) -> float | None:
    """Return the last value of a metric; None if no row has it.

    Args:
        rows: Rows of ``metrics.jsonl``, in their order.
        metric: Its name.
    """
    values = [row[metric] for row in rows if metric in row]
    return values[-1] if values else None


def read_log(run: ComparedRun) -> list[dict[str, Any]]:
    """Return the metrics of a run; empty if they can't be read."""
    try:
        return [*metric_rows(RunFolder(run.folder).metrics)]
    except ToolkitError:
        return []


def _is_timed(rows: Sequence[Mapping[str, float]]) -> bool:
    """Return True for a log whose evaluations have a time."""
    return len(rows) > 0 and all("seconds" in row for row in rows if SCORE in row)


def with_times(
    rows: Sequence[Variant], given: Sequence[float] = ()
) -> tuple[list[Variant], LevelsOf]:
    """Return the rows with the seconds until their runs are as accurate as each level.

    Unless levels are given, they are `FRACTIONS` of the highest mean validation accuracy: of the
    rows that use the hidden labels if there are any, else of all if there are several. Along a
    label curve, of those with the same number of labels.

    Args:
        rows: Rows with their scores; those without a validation accuracy, or with a run whose log
            is missing, have none.
        given: Validation accuracies.
    """
    bounds = [row for row in rows if row.uses_hidden_labels]
    levels_of: LevelsOf = "" if given else "upper bound" if bounds else "best row"
    timed = []
    for row in rows:
        levels: list[tuple[float | None, float]] = [(None, level) for level in given]
        rivals = [other for other in bounds or rows if other.labels == row.labels]
        scored = [one.scores[SCORE].mean for one in rivals if SCORE in one.scores]
        if not given and scored and (bounds or len(rivals) > 1):
            levels = [(fraction, fraction * max(scored)) for fraction in FRACTIONS]
        reached = _reached(row, levels) if SCORE in row.scores and levels else ()
        timed.append(row.model_copy(update={"reached": reached}))
    return timed, levels_of if any(row.reached for row in timed) else ""


def _reached(row: Variant, levels: Sequence[tuple[float | None, float]]) -> tuple[Reached, ...]:
    logs = {run.seed: read_log(run) for run in row.completed_runs}
    if not all(map(_is_timed, logs.values())):  # not the same as a level that was not reached
        return ()
    reached = []
    for fraction, level in levels:
        times = {seed: seconds_to_accuracy(log, level) for seed, log in logs.items()}
        values = {seed: time for seed, time in times.items() if time is not None}
        mean = fmean(values.values()) if len(values) == len(logs) else None
        reached.append(Reached(fraction=fraction, level=level, values=values, mean=mean))
    return tuple(reached)
