"""The report's curves: metrics over steps, read from the logs of runs, and their alarms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ssl_toolkit import registry
from ssl_toolkit.comparisons.schema import ComparedRun, Comparison, Variant
from ssl_toolkit.engine import logged_metrics as logged
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces import Metric
from ssl_toolkit.reports.html.charts import Curve, Line, line_chart, number
from ssl_toolkit.reports.tables import TextTable
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.health import alarms
from ssl_toolkit.runs.metrics_log import last_step, metric_rows

POINTS = 200
"""Maximum number of points of a curve."""

_STEPS_IN_TABLE = 20
_NOT_CHARTED = ("step", "lr", "seconds", "images_per_second")

_LEARNING = (
    logged.VALIDATION_ACCURACY,
    logged.VALIDATION_LOSS,
    logged.LABELED_ACCURACY,
    logged.LABELED_LOSS,
    logged.LOSS,
)
_PSEUDO_LABELS = (logged.COVERAGE, logged.PSEUDO_LABEL_ACCURACY)
_HEALTH = (logged.LARGEST_CLASS_SHARE, logged.SHIFT, logged.ESTIMATED_SHIFT)
_RARE = (logged.LABELED_ACCURACY, logged.LABELED_LOSS, logged.ESTIMATED_SHIFT)
"""Metrics that most runs lack, so that their absence is not mentioned."""

Values = Mapping[str, float]


@dataclass(frozen=True)
class Thinned:
    """A metric of one run over the bins of a common grid: (POINTS,) sums, counts, last steps."""

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]
    steps: NDArray[np.int64]


@dataclass(frozen=True)
class Alarm:
    """A problem of training, and the runs that had it."""

    text: str
    row: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Logs:
    """The content of the logs of all drawn runs."""

    curves: tuple[Mapping[str, Curve], ...]
    """By row, then by metric."""
    alarms: tuple[Alarm, ...]
    empty: tuple[str, ...]
    """Rows without a log."""
    unfinished: tuple[str, ...]
    """Rows without a completed run, whose curves are of unfinished ones."""

    @property
    def metrics(self) -> list[str]:
        """The metrics that any run logged."""
        return sorted({key for curves in self.curves for key in curves})


@dataclass(frozen=True)
class Chart:
    """A chart with its texts and its numbers."""

    title: str
    description: str
    key: str
    drawing: Markup
    table: TextTable
    steps: int
    """Number of steps of the chart; the table may have fewer."""
    rows: str
    """The rows that logged it; empty if all did."""


def read_logs(comparison: Comparison) -> Logs:
    """Read each run's log once, one run in memory at a time."""
    drawn = [_drawn_runs(row) for row in comparison.rows]
    end = max((last_step(RunFolder(r.folder).metrics) for runs in drawn for r in runs), default=0)
    curves = []
    raised: dict[tuple[str, str], list[int]] = {}
    for runs in drawn:
        thinned = []
        for run in runs:
            rows = list(metric_rows(RunFolder(run.folder).metrics))
            for text in alarms(rows, steps=_steps(run, rows)) if rows else ():
                raised.setdefault((text, run.row), []).append(run.seed)
            thinned.append(thin(rows, end))
        curves.append(join(thinned))
    named = [*zip(comparison.rows, curves, strict=True)]
    return Logs(
        tuple(curves),
        tuple(Alarm(text, row, tuple(seeds)) for (text, row), seeds in raised.items()),
        tuple(row.name for row, of_row in named if not of_row),
        tuple(row.name for row, of_row in named if of_row and not row.completed_runs),
    )


def thin(rows: Sequence[Values], end: int) -> dict[str, Thinned]:
    """Average neighboring values so that each metric has at most `POINTS`.

    Args:
        rows: Metrics of one run.
        end: Last step of the grid, whose equal bins are the same for all runs.
    """
    # Lists, not arrays: reading and writing single items of these is several times as fast.
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[int]] = {}
    steps: dict[str, list[int]] = {}
    for row in rows:
        step = int(row["step"])
        point = min(POINTS - 1, max(0, math.ceil(step * POINTS / max(end, 1)) - 1))
        for name, value in row.items():
            if name in _NOT_CHARTED:
                continue
            if name not in sums:
                sums[name], counts[name], steps[name] = [0.0] * POINTS, [0] * POINTS, [0] * POINTS
            sums[name][point] += value
            counts[name][point] += 1
            steps[name][point] = step
    return {
        name: Thinned(np.array(sums[name]), np.array(counts[name]), np.array(steps[name]))
        for name in sums
    }


def join(runs: Sequence[Mapping[str, Thinned]]) -> dict[str, Curve]:
    """Join the runs of a row, by metric."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: _join([run[name] for run in runs if name in run]) for name in names}


def _join(runs: Sequence[Thinned]) -> Curve:
    counts = np.stack([run.counts for run in runs])
    values = np.stack([run.sums for run in runs]) / np.maximum(counts, 1)
    logged_there = counts > 0
    seeds = logged_there.sum(axis=0)
    points = seeds > 0
    mean = np.where(logged_there, values, 0).sum(axis=0)[points] / seeds[points]
    low = np.where(logged_there, values, np.inf).min(axis=0)[points]
    high = np.where(logged_there, values, -np.inf).max(axis=0)[points]
    steps = np.stack([run.steps for run in runs]).max(axis=0)[points]
    return Curve(steps, mean, low, high, len(runs))


def draw_charts(comparison: Comparison, logs: Logs) -> dict[str, tuple[list[Chart], list[str]]]:
    """Draw the charts of each section, and list the metrics of it that no run logged.

    The sections are ``learning`` (accuracy, losses and pseudo labels), ``health`` (signs of a
    collapse) and ``algorithm`` (what the algorithms declare or log).
    """
    declared = _declared(comparison)
    losses = {
        key: declared.get(key, logged.loss_term(key.removeprefix(logged.LOSS_TERM)))
        for key in logs.metrics
        if key.startswith(logged.LOSS_TERM)
    }
    undeclared = {
        key: Metric(key, key.removeprefix(logged.TRAIN))
        for key in logs.metrics
        if key not in logged.ENGINE_METRICS and key not in declared
    }
    others = {
        key: metric
        for key, metric in (declared | undeclared).items()
        if not key.startswith((logged.LOSS_TERM, logged.WEIGHTED_TERM))
    }
    sections = {
        "learning": _by_name(_LEARNING) | losses | _by_name(_PSEUDO_LABELS),
        "health": _by_name(_HEALTH),
        "algorithm": others,
    }
    return {name: _charts(comparison, logs, of, name) for name, of in sections.items()}


def _drawn_runs(row: Variant) -> tuple[ComparedRun, ...]:
    """Return the runs whose curves are drawn: the completed ones, or all if none is completed."""
    return row.completed_runs or row.runs


def _by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _declared(comparison: Comparison) -> dict[str, Metric]:
    """Return what the algorithms declare by key; nothing of one that is not installed."""
    classes = []
    for name in dict.fromkeys(row.algorithm for row in comparison.rows):
        with suppress(PluginError):
            classes.append(registry.load("algorithms", name))
    return logged.declared(classes)


def _steps(run: ComparedRun, rows: Sequence[Values]) -> int:
    """Return the steps of the whole run, which may not be completed."""
    return int((run.config or {}).get("steps") or rows[-1]["step"])


def _charts(
    comparison: Comparison, logs: Logs, metrics: Mapping[str, Metric], section: str
) -> tuple[list[Chart], list[str]]:
    charts, absent = [], []
    for number_of_chart, (key, metric) in enumerate(metrics.items()):
        title = metric.title or metric.name
        lines = [
            Line(row.name, index, logs.curves[index][key])
            for index, row in enumerate(comparison.rows)
            if key in logs.curves[index]
        ]
        if not lines:
            if metric not in _RARE:
                absent.append(title)
            continue
        steps = np.unique(np.concatenate([line.curve.steps for line in lines]))
        charts.append(
            Chart(
                title,
                metric.help,
                key,
                line_chart(f"chart-{section}-{number_of_chart}", title, lines),
                _numbers(lines, steps, spread=not comparison.is_single),
                len(steps),
                _logged_by([row.name for row in comparison.rows], [line.name for line in lines]),
            )
        )
    return charts, absent


def _logged_by(rows: Sequence[str], logging: Sequence[str]) -> str:
    others = [name for name in rows if name not in logging]
    if not others:
        return ""
    if len(logging) < len(others):
        return f"logged by {', '.join(logging)} only"
    return f"not logged by {', '.join(others)}"


def _numbers(lines: Sequence[Line], steps: NDArray[np.int64], *, spread: bool) -> TextTable:
    if len(steps) > _STEPS_IN_TABLE:
        steps = steps[np.linspace(0, len(steps) - 1, _STEPS_IN_TABLE).round().astype(int)]
    rows = [[f"{step:,}", *(_cell(line.curve, step, spread) for line in lines)] for step in steps]
    return TextTable(("step", *(line.name for line in lines)), rows)


def _cell(curve: Curve, step: int, spread: bool) -> str:
    (points,) = np.nonzero(curve.steps == step)
    if not len(points):
        return ""
    mean, low, high = (number(float(v[points[0]])) for v in (curve.mean, curve.low, curve.high))
    return f"{mean} ({low} to {high})" if spread and curve.seeds > 1 else mean
