"""The report's curves: metrics over steps, read from the logs of runs, and their alarms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ssl_toolkit import registry
from ssl_toolkit.comparisons.schema import Comparison
from ssl_toolkit.engine import logged_metrics as logged
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces import Metric
from ssl_toolkit.reports.html.charts import Curve, Line, line_chart, number
from ssl_toolkit.reports.text_table import TextTable
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.health import alarms
from ssl_toolkit.runs.metrics_log import last_step, metric_rows

POINTS = 200
"""Maximum number of points of a curve."""

_STEPS_IN_TABLE = 20
_NOT_CHARTED = {"step", "lr", "images_per_second"}
_SECONDS = "seconds"
_OVER_SECONDS = (logged.VALIDATION_ACCURACY, logged.VALIDATION_MAP)
"""Metrics that are drawn over the seconds of training too."""

_LEARNING = (
    logged.VALIDATION_ACCURACY,
    logged.VALIDATION_MAP,
    logged.VALIDATION_LOSS,
    logged.LABELED_ACCURACY,
    logged.LABELED_MAP,
    logged.LABELED_LOSS,
    logged.LOSS,
)
_PSEUDO_LABELS = (logged.COVERAGE, logged.PSEUDO_LABEL_ACCURACY)
_HEALTH = (logged.LARGEST_CLASS_SHARE, logged.SHIFT, logged.ESTIMATED_SHIFT)
_RARE = (
    *(logged.LABELED_ACCURACY, logged.LABELED_LOSS, logged.ESTIMATED_SHIFT),
    *(logged.VALIDATION_MAP, logged.LABELED_MAP),
)
"""Metrics that most runs lack, so that their absence is not mentioned."""

Values = Mapping[str, float]


class Thinned(NamedTuple):
    """A metric of one run over the bins of a common grid, (POINTS,)."""

    means: NDArray[np.float64]
    """nan in a bin without a value."""
    steps: NDArray[np.int64]
    """The last step of each bin that has a value, 0 for none."""


class Alarm(NamedTuple):
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


class Chart(NamedTuple):
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
    """Read each run's log once, one run in memory at a time.

    Of a row, the completed runs are read, or all if none is completed.
    """
    drawn = [row.completed_runs or row.runs for row in comparison.rows]
    end = max((last_step(RunFolder(r.folder).metrics) for runs in drawn for r in runs), default=0)
    curves = []
    raised: dict[tuple[str, str], list[int]] = {}
    for runs in drawn:
        thinned = []
        for run in runs:
            rows = list(metric_rows(RunFolder(run.folder).metrics))
            # The steps of the whole run, which may not be completed.
            steps = (run.config or {}).get("steps") or (rows[-1]["step"] if rows else 0)
            for text in alarms(rows, steps=int(steps)) if rows else ():
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
    logged_values: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in _NOT_CHARTED:
                logged_values.setdefault(name, []).append((row["step"], value))
    thinned = {}
    for name, points in logged_values.items():
        steps, values = np.array(points, np.float64).T
        bins = np.ceil(steps * POINTS / max(end, 1)).astype(int).clip(1, POINTS) - 1
        last = np.zeros(POINTS, np.int64)
        last[bins] = steps
        counts = np.bincount(bins, minlength=POINTS)
        sums = np.bincount(bins, values, POINTS)
        means = np.divide(sums, counts, where=counts > 0, out=np.full(POINTS, np.nan))
        thinned[name] = Thinned(means, last)
    return thinned


def join(runs: Sequence[Mapping[str, Thinned]]) -> dict[str, Curve]:
    """Join the runs of a row, by metric."""
    curves = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        of_metric = [run[name] for run in runs if name in run]
        values = np.stack([run.means for run in of_metric])
        points = ~np.isnan(values).all(axis=0)
        values = values[:, points]
        mean, low, high = (f(values, axis=0) for f in (np.nanmean, np.nanmin, np.nanmax))
        steps = np.stack([run.steps for run in of_metric]).max(axis=0)[points]
        curves[name] = Curve(steps, mean, low, high, len(of_metric))
    return curves


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
        if key not in logged.ENGINE_METRICS and key not in declared and key != _SECONDS
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


def _by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _declared(comparison: Comparison) -> dict[str, Metric]:
    """Return what the algorithms declare by key; nothing of one that is not installed."""
    classes = []
    for name in dict.fromkeys(row.algorithm for row in comparison.rows):
        with suppress(PluginError):
            classes.append(registry.load("algorithms", name))
    return logged.declared(classes)


def _charts(
    comparison: Comparison, logs: Logs, metrics: Mapping[str, Metric], section: str
) -> tuple[list[Chart], list[str]]:
    charts, absent = [], []
    for number_of_chart, (key, metric) in enumerate(metrics.items()):
        title = metric.title or metric.name
        lines = _lines(comparison, logs, key)
        if not lines:
            if metric not in _RARE:
                absent.append(title)
            continue
        steps = np.unique(np.concatenate([line.curve.steps for line in lines]))
        spread = not comparison.is_single
        chart = Chart(
            title,
            metric.help,
            key,
            line_chart(f"chart-{section}-{number_of_chart}", title, lines),
            _numbers(lines, steps, spread=spread),
            len(steps),
            _logged_by([row.name for row in comparison.rows], [line.name for line in lines]),
        )
        charts.append(chart)
        seconds = {line.index: line for line in _lines(comparison, logs, _SECONDS)}
        if metric in _OVER_SECONDS and all(line.index in seconds for line in lines):
            times = [seconds[line.index] for line in lines]
            charts.append(
                chart._replace(
                    title=f"{title} over time",
                    description="wall time of training with its evaluations",
                    key=_SECONDS,
                    drawing=line_chart(
                        f"chart-{section}-{number_of_chart}-time",
                        title,
                        _over(lines, times),
                        "second",
                    ),
                    table=_numbers(times, steps, spread=spread),
                )
            )
    return charts, absent


def _lines(comparison: Comparison, logs: Logs, key: str) -> list[Line]:
    """Return the rows that logged a metric."""
    return [
        Line(row.name, index, logs.curves[index][key])
        for index, row in enumerate(comparison.rows)
        if key in logs.curves[index]
    ]


def _over(lines: Sequence[Line], times: Sequence[Line]) -> list[Line]:
    """Return lines over the mean seconds at their steps."""
    over = []
    for line, time in zip(lines, times, strict=True):
        seconds = np.interp(line.curve.steps, time.curve.steps, time.curve.mean)
        over.append(replace(line, curve=replace(line.curve, steps=seconds)))
    return over


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
