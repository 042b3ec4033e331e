"""The label curve of a comparison as tables and sentences."""

from __future__ import annotations

from ssl_toolkit.comparisons.curve_schema import Crossing, LabelCurve, Worth
from ssl_toolkit.comparisons.schema import Comparison, ScoreStats, Variant
from ssl_toolkit.reports.text_table import NOTHING, TextTable, share
from ssl_toolkit.text import display_text

UNITS = {"labels_per_class": "labels per class", "num_labels": "labels"}
"""Names of the numbers of labels, by the setting."""

FEW_SEEDS = 5


def score_table(comparison: Comparison, curve: LabelCurve) -> TextTable:
    """Return the mean scores with their 95 % intervals: a row per method, a column per number."""
    by_place = _by_place(comparison)
    rows = [
        [method, *(_score(by_place.get((method, count)), curve) for count in curve.counts)]
        for method in comparison.methods
    ]
    return TextTable((_head(curve), *map(str, curve.counts)), rows)


def worth_table(comparison: Comparison, curve: LabelCurve, other: str) -> TextTable | None:
    """Return the numbers of labels of one method that each number of the others is worth.

    Args:
        comparison: The comparison.
        curve: Its curve.
        other: The method whose labels are the unit.

    Returns:
        None without such numbers.
    """
    found = {(w.method, w.labels): w for w in curve.worth if w.other == other}
    rows = [
        [m, *(_worth(found.get((m, count)), curve) for count in curve.counts)]
        for m in comparison.methods
        if any(method == m for method, _ in found)
    ]
    return TextTable((_head(curve), *map(str, curve.counts)), rows) if rows else None


def curve_sentences(comparison: Comparison, curve: LabelCurve) -> list[str]:
    """Return where methods cross, and what the labels of each are worth in those of the baseline.

    Of each method, the number of labels is that with the most exact answer: one in the measured
    range, the smallest of them.
    """
    sentences = []
    for method in comparison.methods:
        found = [w for w in curve.worth if (w.method, w.other) == (method, comparison.baseline)]
        if found:
            inside = [worth for worth in found if not worth.outside]
            sentences.append(_worth_sentence((inside or found)[0], curve))
    return [*sentences, *(_crossing_sentence(one, curve) for one in curve.crossings)]


def curve_notes(comparison: Comparison, curve: LabelCurve) -> list[str]:
    """Return the definitions of the numbers of a label curve."""
    notes = [
        "rows are compared at equal numbers of labels only: differences, p and Holm's adjustment "
        "are of one number of labels",
    ]
    if curve.worth:
        notes.append(
            "equivalent numbers of labels: interpolated between means over the logarithm of the "
            "number, never extrapolated; 95 % intervals by the bootstrap over seeds"
        )
    if 1 < len(comparison.seeds) < FEW_SEEDS and curve.worth:
        notes.append(
            f"{len(comparison.seeds)} seeds are few for such an interval; {FEW_SEEDS} or more make "
            "it reliable"
        )
    return notes


def _by_place(comparison: Comparison) -> dict[tuple[str, int | None], Variant]:
    return {(row.method, row.labels): row for row in comparison.rows}


def _head(curve: LabelCurve) -> str:
    return UNITS[curve.key]


def interval_text(stats: ScoreStats) -> str:
    """Return a mean with its 95 % interval, if it has one."""
    if stats.interval is None:
        return share(stats.mean)
    lower, upper = stats.interval
    return f"{share(stats.mean)} ({share(lower)} to {share(upper)})"


def _score(row: Variant | None, curve: LabelCurve) -> str:
    stats = row.scores.get(curve.score) if row else None
    if row is None or stats is None:
        return NOTHING
    missing = f", n {stats.count}" if stats.count < len(row.runs) else ""
    return interval_text(stats) + missing


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _outside(curve: LabelCurve, outside: str) -> str:
    first, last = curve.counts[0], curve.counts[-1]
    return f"less than {first}" if outside == "below" else f"more than {last}"


def _range(interval: tuple[float | None, float | None], curve: LabelCurve) -> str:
    lower, upper = interval
    low = _outside(curve, "below") if lower is None else _number(lower)
    return f"{low} to {_outside(curve, 'above') if upper is None else _number(upper)}"


def _worth(worth: Worth | None, curve: LabelCurve) -> str:
    if worth is None:
        return NOTHING
    text = _plain(worth, curve)
    return text if worth.interval is None else f"{text} ({_range(worth.interval, curve)})"


def _plain(worth: Worth, curve: LabelCurve) -> str:
    if worth.equivalent is None:
        return _outside(curve, worth.outside)
    return _number(worth.equivalent)


def _labels(number: str, curve: LabelCurve) -> str:
    unit = UNITS[curve.key]
    return f"{number} {unit.replace('labels', 'label', 1) if number == '1' else unit}"


def _worth_sentence(worth: Worth, curve: LabelCurve) -> str:
    given = _labels(str(worth.labels), curve)
    about = "" if worth.outside else "about "
    equal = _labels(_plain(worth, curve), curve)
    text = f"{worth.method} with {given} is worth {about}{equal} of {worth.other}"
    if worth.interval is not None:
        text += f" (95 % interval {_range(worth.interval, curve)})"
    return display_text(text)


def _crossing_sentence(crossing: Crossing, curve: LabelCurve) -> str:
    text = (
        f"{crossing.method} is better than {crossing.other} from about "
        f"{_number(crossing.labels)} {UNITS[curve.key]} on, and worse below"
    )
    if crossing.interval is not None:
        text += f" (95 % interval {_range(crossing.interval, curve)})"
    return display_text(text)
