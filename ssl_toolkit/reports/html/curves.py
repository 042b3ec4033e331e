"""The report's curves, one chart per metric, and the alarms of the runs' logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from ssl_toolkit import registry
from ssl_toolkit.comparisons.types import ComparedRun, Comparison
from ssl_toolkit.engine import logged_metrics as logged
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces import Metric
from ssl_toolkit.reports.html.charts import Line, line_chart, number
from ssl_toolkit.reports.html.scores import Table, is_single
from ssl_toolkit.reports.html.series import (
    Curve,
    Values,
    grid_end,
    join,
    shown_members,
    thin,
)
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.health import alarms
from ssl_toolkit.runs.metrics_log import metric_rows

_STEPS_IN_TABLE = 20

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
    """Rows without a finished run, whose curves are of unfinished ones."""


@dataclass(frozen=True)
class Chart:
    """A chart with its texts and its numbers."""

    title: str
    what: str
    key: str
    drawing: Markup
    table: Table
    steps: int
    """Number of steps of the chart; the table may have fewer."""
    rows: str
    """The rows that logged it; empty if all did."""


def read_logs(comparison: Comparison) -> Logs:
    """Read each run's log once, one run in memory at a time."""
    end = grid_end(comparison)
    curves = []
    raised: dict[tuple[str, str], list[int]] = {}
    for row in comparison.rows:
        thinned = []
        for member in shown_members(row):
            rows = list(metric_rows(RunFolder(member.folder).metrics))
            for text in alarms(rows, steps=_steps(member, rows)) if rows else ():
                raised.setdefault((text, row.name), []).append(member.seed)
            thinned.append(thin(rows, end))
        curves.append(join(thinned))
    return Logs(
        tuple(curves),
        tuple(Alarm(text, row, tuple(seeds)) for (text, row), seeds in raised.items()),
        tuple(r.name for r, c in zip(comparison.rows, curves, strict=True) if not c),
        tuple(
            row.name
            for row, own in zip(comparison.rows, curves, strict=True)
            if own and not any(member.completed for member in row.runs)
        ),
    )


def learning_charts(comparison: Comparison, logs: Logs) -> tuple[list[Chart], list[str]]:
    """Chart accuracy, losses and pseudo labels over steps; also return what no run logged."""
    terms = [key for key in _logged(logs) if key.startswith(logged.LOSS_TERM)]
    own = _declared(comparison)
    losses = {
        key: own.get(key, logged.loss_term(key.removeprefix(logged.LOSS_TERM))) for key in terms
    }
    first, last = _by_name(_LEARNING), _by_name(_PSEUDO_LABELS)
    return _charts(comparison, logs, first | losses | last, "learning")


def health_charts(comparison: Comparison, logs: Logs) -> tuple[list[Chart], list[str]]:
    """Chart what shows a collapse of the training; also return what no run logged."""
    return _charts(comparison, logs, _by_name(_HEALTH), "health")


def algorithm_charts(comparison: Comparison, logs: Logs) -> tuple[list[Chart], list[str]]:
    """Chart the metrics that algorithms declare or log; also return what no run logged."""
    loss_terms = (logged.LOSS_TERM, logged.WEIGHTED_TERM)
    own = {
        key: metric
        for key, metric in _declared(comparison).items()
        if not key.startswith(loss_terms)
    }
    others = {
        key: Metric(key, key.removeprefix(logged.TRAIN))
        for key in _logged(logs)
        if key not in logged.ENGINE_METRICS and not key.startswith(loss_terms)
    }
    return _charts(comparison, logs, own | {k: m for k, m in others.items() if k not in own}, "own")


def _by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _logged(logs: Logs) -> list[str]:
    return sorted({key for curves in logs.curves for key in curves})


def _declared(comparison: Comparison) -> dict[str, Metric]:
    """Return what the algorithms declare by key; nothing of one that is not installed."""
    classes = []
    for name in dict.fromkeys(row.algorithm for row in comparison.rows):
        with suppress(PluginError):
            classes.append(registry.load("algorithms", name))
    return logged.declared(classes)


def _steps(member: ComparedRun, rows: Sequence[Values]) -> int:
    """Return the steps of the whole run, which may not have finished."""
    return int((member.config or {}).get("steps") or rows[-1]["step"])


def _charts(
    comparison: Comparison, logs: Logs, wanted: Mapping[str, Metric], section: str
) -> tuple[list[Chart], list[str]]:
    charts, absent = [], []
    for index, (key, metric) in enumerate(wanted.items()):
        title = metric.title or metric.name
        lines = [
            Line(row.name, place, logs.curves[place][key])
            for place, row in enumerate(comparison.rows)
            if key in logs.curves[place]
        ]
        if not lines:
            if metric not in _RARE:
                absent.append(title)
            continue
        charts.append(
            Chart(
                title,
                metric.help,
                key,
                line_chart(f"chart-{section}-{index}", title, lines),
                _numbers(lines, spread=not is_single(comparison)),
                len(np.unique(np.concatenate([line.curve.steps for line in lines]))),
                _which([row.name for row in comparison.rows], [line.name for line in lines]),
            )
        )
    return charts, absent


def _which(rows: Sequence[str], there: Sequence[str]) -> str:
    without = [name for name in rows if name not in there]
    if not without:
        return ""
    if len(there) < len(without):
        return f"logged by {', '.join(there)} only"
    return f"not logged by {', '.join(without)}"


def _numbers(lines: Sequence[Line], *, spread: bool) -> Table:
    steps = np.unique(np.concatenate([line.curve.steps for line in lines]))
    if len(steps) > _STEPS_IN_TABLE:
        steps = steps[np.linspace(0, len(steps) - 1, _STEPS_IN_TABLE).round().astype(int)]
    rows = []
    for step in steps:
        cells = [f"{step:,}"]
        for line in lines:
            (place,) = np.nonzero(line.curve.steps == step)
            cells.append(_cell(line.curve, int(place[0]), spread) if len(place) else "")
        rows.append(cells)
    return Table(("step", *(line.name for line in lines)), rows)


def _cell(curve: Curve, place: int, spread: bool) -> str:
    text = number(float(curve.mean[place]))
    if not spread or curve.seeds < 2:
        return text
    return f"{text} ({number(float(curve.low[place]))} to {number(float(curve.high[place]))})"
