"""The report's curves: what each chart shows, and what the runs' logs say in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from ssl_toolkit.comparisons.types import ComparedRun, Comparison
from ssl_toolkit.reports.html.charts import Line, line_chart, number
from ssl_toolkit.reports.html.scores import Table, is_single
from ssl_toolkit.reports.html.series import (
    Curve,
    Values,
    grid_end,
    join,
    read_metrics,
    shown_members,
    thin,
)
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.health import alarms

_STEPS_IN_TABLE = 20

_LEARNING = {
    "validation.accuracy": ("Validation accuracy", "of the averaged weights where there are such"),
    "validation.loss": ("Validation loss", "cross entropy in nats"),
    "train.labeled.accuracy": (
        "Accuracy on the labeled training images",
        "logged where there is no validation",
    ),
    "train.loss": ("Training loss", "the weighted sum of the terms"),
}
_RARE = ("train.labeled.accuracy", "train.pseudo_label_shift_estimated")
"""What is not missed where it is absent."""

_PSEUDO_LABELS = {
    "train.coverage": (
        "Coverage by pseudo labels",
        "share of the unlabeled images that passed the threshold and were used",
    ),
    "train.pseudo_label_accuracy": (
        "Accuracy of the used pseudo labels",
        "against the hidden labels, where there are such",
    ),
}
_HEALTH = {
    "train.largest_class_share": (
        "Share of the most frequent pseudo label",
        "among the used ones; near 1, one class takes them all",
    ),
    "train.pseudo_label_shift": (
        "Shift of the pseudo labels",
        "total variation distance between the class shares of the used pseudo labels and those of "
        "the pool, where labels or validation images tell them; 0 is the same distribution",
    ),
    "train.pseudo_label_shift_estimated": (
        "Shift of the pseudo labels, by an estimate",
        "the same from the shares that the probe estimates, where nothing tells them",
    ),
    "train.pair_confidence": ("Pairs above the confidence threshold", "share of all pairs"),
    "train.pair_similarity": ("Pairs above the similarity threshold", "share of all pairs"),
    "train.pair_both": ("Pairs above both thresholds", "share of all pairs"),
    "train.pair_confidence_false": (
        "False pairs above the confidence threshold",
        "share of those pairs whose hidden labels differ",
    ),
    "train.pair_similarity_false": (
        "False pairs above the similarity threshold",
        "share of those pairs whose hidden labels differ",
    ),
    "train.pair_both_false": (
        "False pairs above both thresholds",
        "share of those pairs whose hidden labels differ",
    ),
}


@dataclass(frozen=True)
class Alarm:
    """What went wrong in training, and in which runs."""

    text: str
    row: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Logs:
    """What the logs of all drawn runs hold."""

    curves: tuple[Mapping[str, Curve], ...]
    """By row, then by metric."""
    alarms: tuple[Alarm, ...]
    empty: tuple[str, ...]
    """Rows without a log."""
    unfinished: tuple[str, ...]
    """Rows whose curves are of runs that did not finish, since none did."""


@dataclass(frozen=True)
class Chart:
    """A chart with its words and its numbers."""

    title: str
    what: str
    key: str
    drawing: Markup
    table: Table
    steps: int
    """How many steps the chart has; the table may have fewer."""
    rows: str
    """Which rows logged it; empty where all did."""


def read_logs(comparison: Comparison) -> Logs:
    """Read each run's log once, one run in memory at a time."""
    end = grid_end(comparison)
    curves = []
    raised: dict[tuple[str, str], list[int]] = {}
    for row in comparison.rows:
        thinned = []
        for member in shown_members(row):
            rows = list(read_metrics(RunFolder(member.folder).metrics))
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
    """Accuracy, losses and pseudo labels over steps; and what no run logged."""
    terms = sorted({k for own in logs.curves for k in own if k.startswith("train.loss.")})
    losses = {
        key: (f"Loss term “{key.removeprefix('train.loss.')}”", "before its weight")
        for key in terms
    }
    return _charts(comparison, logs, _LEARNING | losses | _PSEUDO_LABELS)


def health_charts(comparison: Comparison, logs: Logs) -> tuple[list[Chart], list[str]]:
    """What shows a collapse of the training; and what no run logged."""
    return _charts(comparison, logs, _HEALTH)


def _steps(member: ComparedRun, rows: Sequence[Values]) -> int:
    """Of the whole run, which may not have come so far."""
    return int((member.config or {}).get("steps") or rows[-1]["step"])


def _charts(
    comparison: Comparison, logs: Logs, wanted: Mapping[str, tuple[str, str]]
) -> tuple[list[Chart], list[str]]:
    charts, absent = [], []
    for key, (title, what) in wanted.items():
        lines = [
            Line(row.name, place, logs.curves[place][key])
            for place, row in enumerate(comparison.rows)
            if key in logs.curves[place]
        ]
        if not lines:
            if key not in _RARE:
                absent.append(title)
            continue
        identity = f"chart-{list(wanted).index(key)}-{'h' if wanted is _HEALTH else 'l'}"
        charts.append(
            Chart(
                title,
                what,
                key,
                line_chart(identity, title, lines),
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
