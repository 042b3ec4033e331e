"""The table of a comparison as text: cells, footnotes and notes for every rendering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ssl_toolkit.comparisons.types import ComparedRun, Comparison, Difference, ScoreStats, Variant
from ssl_toolkit.text import display_text

NOTHING = "–"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class Sheet:
    """Cells as text."""

    head: str
    """The column of names."""
    blocks: tuple[tuple[str, ...], ...]
    """The columns, in groups that are narrow enough for a terminal; each begins with `head`."""
    rows: tuple[dict[str, str], ...]
    """By column; names of rows are foreign text, to be escaped."""
    footnotes: tuple[str, ...]
    """Explanations of the marks ``[1]`` at the names."""


def sheet(comparison: Comparison) -> Sheet:
    """Return the rows as text.

    Scores are mean ± sample standard deviation, counts are completed of all.

    A column that no row has a value for is left out.
    """
    marks, footnotes = _footnotes(comparison)
    rows = tuple(
        {_HEAD: _marked(row, marks)} | {name: show(row) for name, show in _COLUMNS.items()}
        for row in comparison.rows
    )
    titles = {
        _DIFFERENCE: f"difference to {display_text(comparison.baseline or '')}",
        _DIFFERENCE_INTERVAL: "its 95 % interval",
    }
    names = {
        name: titles.get(name, name)
        for name in _COLUMNS
        if any(cells[name] != NOTHING for cells in rows)
    }
    renamed = tuple(
        {_HEAD: cells[_HEAD]} | {title: cells[name] for name, title in names.items()}
        for cells in rows
    )
    blocks = tuple(
        (_HEAD, *(names[name] for name in block if name in names))
        for block in _BLOCKS
        if any(name in names for name in block)
    )
    return Sheet(_HEAD, blocks, renamed, footnotes)


def foot(comparison: Comparison) -> list[str]:
    """Return the notes and the definitions of the numbers, a line each."""
    lines = [*comparison.notes]
    scores = [spread for row in comparison.rows for spread in row.scores.values()]
    if any(spread.count > 1 for spread in scores):
        lines.append("± is the sample standard deviation over seeds (n - 1); n counts the seeds")
    if any(spread.interval is not None for spread in scores):
        lines.append(
            "95 % intervals are of the mean over seeds: Student's t on the logit scale, which "
            "stays between 0 and 1; none where all seeds have the same value"
        )
    tests = [row.difference for row in comparison.rows if row.difference is not None]
    if any(test.p_value is not None for test in tests):
        lines.append(
            f"p: two-sided paired t-test of the test accuracy against {comparison.baseline} on the "
            "common seeds, its interval that of the same t; p (Holm): adjusted for the number of "
            "rows"
        )
    if scores and all(spread.count == 1 for spread in scores):
        lines.append("one seed each: nothing is known about the spread")
    return [display_text(line) for line in lines]


def cell(value: Any) -> str:
    """Return a setting as written in a configuration."""
    return "null" if value is None else display_text(str(value))


def share(value: float) -> str:
    """Format a score, which is a share, for people: in every table and page the same."""
    return f"{value:.4f}"


def spread_text(spread: ScoreStats, digits: int = 4, sign: str = "") -> str:
    """Format the mean of a score with its standard deviation, if it has one."""
    mean = f"{spread.mean:{sign}.{digits}f}"
    return mean if spread.deviation is None else f"{mean} ± {spread.deviation:.{digits}f}"


def p_text(value: float | None) -> str:
    """Format a p-value."""
    return NOTHING if value is None else "<0.0001" if value < 0.0001 else f"{value:.4f}"


def _score(name: str, digits: int = 4) -> Callable[[Variant], str]:
    def show(row: Variant) -> str:
        spread = row.scores.get(name)
        return NOTHING if spread is None else spread_text(spread, digits)

    return show


def _difference(show: Callable[[Difference], str]) -> Callable[[Variant], str]:
    return lambda row: NOTHING if row.difference is None else show(row.difference)


def _interval(spread: ScoreStats | None, sign: str = "") -> str:
    if spread is None or spread.interval is None:
        return NOTHING
    lower, upper = spread.interval
    return f"{lower:{sign}.4f} to {upper:{sign}.4f}"


def _n(row: Variant) -> str:
    done = sum(member.completed for member in row.runs)
    return str(done) if done == len(row.runs) else f"{done} of {len(row.runs)}"


_HEAD = "row"
_DIFFERENCE = "difference"
_DIFFERENCE_INTERVAL = "interval of the difference"
_BLOCKS: tuple[dict[str, Callable[[Variant], str]], ...] = (
    {
        "n": _n,
        "accuracy": _score("test.accuracy"),
        "95 % interval": lambda row: _interval(row.scores.get("test.accuracy")),
    },
    {
        _DIFFERENCE: _difference(lambda difference: spread_text(difference.spread, 4, "+")),
        _DIFFERENCE_INTERVAL: _difference(lambda difference: _interval(difference.spread, "+")),
        "p": _difference(lambda difference: p_text(difference.p_value)),
        "p (Holm)": _difference(lambda difference: p_text(difference.adjusted)),
    },
    {
        "validation accuracy": _score("validation.accuracy"),
        "balanced accuracy": _score("test.balanced_accuracy"),
        "macro F1": _score("test.macro_f1"),
    },
    {
        "ECE": _score("test.ece"),
        "NLL": _score("test.nll"),
        "convergence step": _score("convergence_step", 0),
    },
    {"seconds": _score("seconds", 0), "images/s": _score("images_per_second", 0)},
)
"""The columns of the terminal, Markdown and the HTML report, in groups that fit 80 characters."""
_COLUMNS = {name: show for block in _BLOCKS for name, show in block.items()}


def _marked(row: Variant, marks: dict[str, list[int]]) -> str:
    name = display_text(" ".join(row.name.split()))
    return " ".join([name, *(f"[{number}]" for number in marks[row.name])])


def _footnotes(comparison: Comparison) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """The numbers at each row's name, and the text of each number; equal texts share one."""
    numbers: dict[str, int] = {}
    marks = {
        row.name: [numbers.setdefault(text, len(numbers) + 1) for text in _remarks(row)]
        for row in comparison.rows
    }
    return marks, tuple(f"[{number}] {text}" for text, number in numbers.items())


def _remarks(row: Variant) -> list[str]:
    remarks = []
    if row.overrides:
        settings = ", ".join(f"{key} = {cell(value)}" for key, value in row.overrides.items())
        remarks.append(f"not the same in all rows, by permission: {settings}")
    if row.uses_hidden_labels:
        remarks.append("was given the hidden labels: a bound, not a competitor")
    remarks += [_absent(member) for member in row.runs if not member.completed]
    return remarks


def _absent(member: ComparedRun) -> str:
    reason = f": {member.reason}" if member.reason else ""
    return display_text(f"{member.row}, seed {member.seed}: {member.status}{reason}")
