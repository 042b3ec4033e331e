"""The section of the label curve in the page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from ssl_toolkit.comparisons.curve_schema import LabelCurve
from ssl_toolkit.comparisons.ranking import leaders
from ssl_toolkit.comparisons.schema import Comparison, ScoreStats, score_title
from ssl_toolkit.reports.html.charts import Curve, Line, label_chart
from ssl_toolkit.reports.label_curve import UNITS, curve_notes, curve_sentences, worth_table
from ssl_toolkit.reports.tables import curve_tables
from ssl_toolkit.reports.text_table import TextTable, share


class Method(NamedTuple):
    """A line of the legend."""

    name: str


class LabelSection(NamedTuple):
    """The parts of the section."""

    sentences: list[str]
    notes: list[str]
    drawing: Markup
    """Empty without any score."""
    methods: list[Method]
    tables: dict[str, TextTable]
    """By title."""
    other_tables: dict[str, TextTable]
    """In units of the labels of methods other than the baseline, by title."""


def label_section(comparison: Comparison) -> LabelSection | None:
    """Return the section of the label curve; None without one."""
    curve = comparison.curve
    if curve is None:
        return None
    lines = [
        line
        for index, method in enumerate(comparison.methods)
        if (line := _line(comparison, curve, method, index)) is not None
    ]
    title = score_title(curve.score).capitalize()
    others = {
        f"In labels of {other}": table
        for other in comparison.methods
        if other != comparison.baseline and (table := worth_table(comparison, curve, other))
    }
    return LabelSection(
        curve_sentences(comparison, curve),
        curve_notes(comparison, curve),
        label_chart("label-curve", title, UNITS[curve.key], lines) if lines else Markup(""),
        [Method(method) for method in comparison.methods],
        curve_tables(comparison),
        others,
    )


def best_by_number(comparison: Comparison, curve: LabelCurve) -> str:
    """Return the methods with the highest mean at each number of labels, as a sentence."""
    parts = []
    for count in curve.counts:
        rows = [r for r in comparison.rows if r.labels == count and curve.score in r.scores]
        if rows:
            best = leaders(rows, curve.score)
            names = " and ".join(row.method for row in best)
            parts.append(f"{names} with {count} ({share(best[0].scores[curve.score].mean)})")
    kind = score_title(curve.score)
    return f"The highest mean {kind} by {UNITS[curve.key]}: {', '.join(parts)}."


def _line(comparison: Comparison, curve: LabelCurve, method: str, index: int) -> Line | None:
    found: dict[int, ScoreStats] = {
        row.labels: row.scores[curve.score]
        for row in comparison.rows
        if row.method == method and row.labels is not None and curve.score in row.scores
    }
    if not found:
        return None
    counts = sorted(found)
    ends = [found[count].interval or (found[count].mean,) * 2 for count in counts]
    return Line(
        method,
        index,
        Curve(
            np.array(counts),
            np.array([found[count].mean for count in counts]),
            np.array([low for low, _ in ends]),
            np.array([high for _, high in ends]),
            max(stats.count for stats in found.values()),
        ),
    )
