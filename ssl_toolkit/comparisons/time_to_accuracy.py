"""The seconds of training after which a run is as accurate as a level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ssl_toolkit.engine.logged_metrics import VALIDATION_ACCURACY


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
    name = VALIDATION_ACCURACY.name
    return next((row["seconds"] for row in rows if row.get(name, -1.0) >= level), None)


def last_value(rows: Iterable[Mapping[str, float]], metric: str) -> float | None:
    """Return the last value of a metric; None if no row has it.

    Args:
        rows: Rows of ``metrics.jsonl``, in their order.
        metric: Its name.
    """
    values = [row[metric] for row in rows if metric in row]
    return values[-1] if values else None
