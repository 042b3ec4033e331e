"""The table of a comparison: its columns, and as JSON, CSV, Markdown and on the terminal."""

from __future__ import annotations

import json
import math
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ssl_toolkit import markdown
from ssl_toolkit.comparisons.schema import (
    SCORES,
    ComparedRun,
    Comparison,
    ScoreStats,
    Variant,
    score_title,
)
from ssl_toolkit.comparisons.statistics import score_stats
from ssl_toolkit.console import Console
from ssl_toolkit.errors import visible
from ssl_toolkit.files import write_text
from ssl_toolkit.reports.label_curve import curve_notes, curve_sentences, score_table, worth_table
from ssl_toolkit.reports.text_table import NOTHING, TextTable, p_text, stats_text
from ssl_toolkit.tabular import Row, write_rows
from ssl_toolkit.text import display_path, display_text

NAMES = ("comparison.json", "comparison.csv", "comparison.md")


@dataclass(frozen=True)
class SummaryTable:
    """The cells of all renderings as text."""

    groups: tuple[tuple[str, ...], ...]
    """Titles of the columns, in groups that are narrow enough for a terminal."""
    names: tuple[str, ...]
    """Names of the rows with the marks of their footnotes; to be escaped."""
    footnotes: tuple[str, ...]
    """Explanations of the marks ``[1]`` at the names."""
    rows: tuple[dict[str, str], ...]
    """Cells by column."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The titles of all columns."""
        return tuple(title for group in self.groups for title in group)


def summary_table(comparison: Comparison) -> SummaryTable:
    """Return scores as mean ± sample standard deviation, counts as completed of all.

    A column without any value is absent.
    """
    rows = [
        [*_cells(row, comparison.baseline or "", comparison.ranked_by), _times(row, comparison)]
        for row in comparison.rows
    ]
    shown = [
        tuple(dict.fromkeys(title for group in of for title in group if group[title] != NOTHING))
        for of in zip(*rows, strict=True)
    ]
    titles = dict.fromkeys((title for group in shown for title in group), NOTHING)
    cells = tuple(titles | dict(ChainMap(*groups)) for groups in rows)
    return SummaryTable(tuple(filter(None, shown)), *_marked_names(comparison), cells)


def table_notes(comparison: Comparison) -> list[str]:
    """Return the notes and the definitions of the numbers, a line each."""
    lines = [*comparison.notes]
    scores = [stats for row in comparison.rows for stats in row.scores.values()]
    if any(stats.count > 1 for stats in scores):
        lines.append("± is the sample standard deviation over seeds (n - 1); n counts the seeds")
    if any(stats.interval is not None for stats in scores):
        lines.append(
            "95 % intervals are of the mean over seeds: Student's t on the logit scale, which "
            "stays between 0 and 1; none where all seeds have the same value"
        )
    if any(row.difference and row.difference.p_value is not None for row in comparison.rows):
        lines.append(
            f"p: two-sided paired t-test of the {score_title(comparison.ranked_by)} against "
            f"{comparison.baseline} on the common seeds, its interval that of the same t; p "
            "(Holm): adjusted for the number of rows"
        )
    if any(row.reached for row in comparison.rows):
        lines.append(
            "seconds to a level: of training with its evaluations, up to the first evaluation with "
            "at least this validation accuracy; comparable if the runs had equal shares of the CPU"
        )
    if comparison.curve is not None:
        lines += curve_notes(comparison, comparison.curve)
    if scores and all(stats.count == 1 for stats in scores):
        lines.append("one seed each: the spread over seeds is unknown")
    return [display_text(line) for line in lines]


def write_tables(comparison: Comparison, folder: Path) -> tuple[Path, ...]:
    """Write ``comparison.json``, ``.csv`` and ``.md``, each whole or not at all.

    The JSON has all scores as numbers, the settings and the environment; the CSV a line per run,
    with empty cells for missing scores and levels that were not reached, and method and number of
    labels of a label curve; the Markdown the table of the terminal and the HTML report.

    Args:
        comparison: The comparison.
        folder: Created if missing; folders of runs inside it are relative to it.

    Returns:
        The three paths.

    Raises:
        OSError: A file can't be written; the previous one is untouched.
    """
    as_json, as_csv, as_markdown = (folder / name for name in NAMES)
    _relative(comparison, folder).write(as_json)
    curved = comparison.curve is not None
    times = [*dict.fromkeys(of.name for row in comparison.rows for of in row.reached)]
    lines = (_csv_row(row, run, curved, times) for row in comparison.rows for run in row.runs)
    columns = (*_CSV_COLUMNS, *(_CURVE_COLUMNS if curved else ()), *SCORES, *times)
    write_rows(as_csv, columns, lines)
    write_text(as_markdown, markdown_page(comparison))
    return as_json, as_csv, as_markdown


def show_table(comparison: Comparison, console: Console) -> None:
    """Print the rows: a table on a terminal, a line per row elsewhere; then the notes."""
    summary = summary_table(comparison)
    if console.rich.is_terminal:
        for number, group in enumerate(summary.groups):
            title = None if number else Text(visible(display_text(comparison.name)))
            table = Table("row", title=title)
            for name in group:
                table.add_column(Text(visible(name)), justify="right")
            for name, cells in zip(summary.names, summary.rows, strict=True):
                row = (name, *(cells[title] for title in group))
                table.add_row(*(Text(visible(text)) for text in row))
            console.rich.print(table)
    else:
        for name, cells in zip(summary.names, summary.rows, strict=True):
            texts = [f"{t} {cells[t]}" for t in summary.columns if cells[t] != NOTHING]
            console.say(f"{name}: {', '.join(texts)}", important=True)
    _show_curve(comparison, console)
    for line in (*summary.footnotes, *table_notes(comparison)):
        console.say(line, important=True)


def _show_curve(comparison: Comparison, console: Console) -> None:
    for name, of_curve in curve_tables(comparison).items():
        title = display_text(name)
        if console.rich.is_terminal:
            table = Table(*map(visible, of_curve.heads), title=Text(visible(title)))
            for row in of_curve.rows:
                table.add_row(*(Text(visible(display_text(text))) for text in row))
            console.rich.print(table)
        else:
            for method, *cells in of_curve.rows:
                pairs = zip(of_curve.heads[1:], cells, strict=True)
                texts = ", ".join(f"{count}: {cell}" for count, cell in pairs)
                line = f"{title}, {method}: {of_curve.heads[0]} {texts}"
                console.say(display_text(line), important=True)
    if comparison.curve is not None:
        for line in curve_sentences(comparison, comparison.curve):
            console.say(line, important=True)


def markdown_page(comparison: Comparison) -> str:
    """Return the table as Markdown, with its footnotes, notes, seeds and versions."""
    summary = summary_table(comparison)
    rows = [
        [escaped_text(name), *(cells[title] for title in summary.columns)]
        for name, cells in zip(summary.names, summary.rows, strict=True)
    ]
    versions = ", ".join(f"{k} {' and '.join(v)}" for k, v in comparison.versions.items())
    origin = {
        "Seeds": ", ".join(map(str, comparison.seeds)),
        "Fingerprint of the shared settings": comparison.fingerprint,
        "Versions": versions,
    }
    parts = [
        f"# {escaped_text(display_text(comparison.name))}",
        markdown.table(["row", *map(escaped_text, summary.columns)], rows),
        *_curve_parts(comparison),
        "  \n".join(map(escaped_text, summary.footnotes)),
        markdown.bullets(map(escaped_text, table_notes(comparison))),
        "  \n".join(escaped_text(f"{name}: {text}") for name, text in origin.items() if text),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def curve_tables(comparison: Comparison) -> dict[str, TextTable]:
    """Return the tables of the label curve by title; empty without one."""
    curve = comparison.curve
    if curve is None:
        return {}
    kind = score_title(curve.score)
    tables = {f"Mean {kind} (95 % interval)": score_table(comparison, curve)}
    if comparison.baseline is not None:
        worth = worth_table(comparison, curve, comparison.baseline)
        if worth is not None:
            title = f"The same {kind} with how many labels of {comparison.baseline}"
            tables[f"{title} (95 % interval)"] = worth
    return tables


def _curve_parts(comparison: Comparison) -> list[str]:
    if comparison.curve is None:
        return []
    parts = ["## Label curve", markdown.bullets(_escaped_lines(comparison))]
    for title, table in curve_tables(comparison).items():
        rows = [[escaped_text(display_text(cell)) for cell in row] for row in table.rows]
        parts += [escaped_text(display_text(title)), markdown.table([*table.heads], rows)]
    return parts


def _escaped_lines(comparison: Comparison) -> list[str]:
    curve = comparison.curve
    return [*map(escaped_text, curve_sentences(comparison, curve))] if curve else []


def setting_text(value: Any) -> str:
    """Format a value of a setting as a configuration file has it, without quotes."""
    is_constant = value is None or isinstance(value, bool)
    return json.dumps(value) if is_constant else display_text(str(value))


def _interval(stats: ScoreStats | None, sign: str = "") -> str:
    if stats is None or stats.interval is None:
        return NOTHING
    lower, upper = stats.interval
    return f"{lower:{sign}.4f} to {upper:{sign}.4f}"


def _cells(row: Variant, baseline: str, ranking: str) -> list[dict[str, str]]:
    """Return the cells of a row by title, in groups of columns that fit 80 characters."""

    def score(name: str, digits: int = 4) -> str:
        stats = row.scores.get(name)
        return NOTHING if stats is None else stats_text(stats, digits)

    completed, difference = len(row.completed_runs), row.difference
    p_value, adjusted = (
        (difference.p_value, difference.adjusted_p_value) if difference else (None, None)
    )
    balanced = ranking == "test.balanced_accuracy"
    ranks, other = ("balanced accuracy", "accuracy")[:: 1 if balanced else -1]
    ranked_by = f"test.{ranks.replace(' ', '_')}"
    if ranking.endswith(".map"):  # --task multilabel
        ranks, ranked_by = "mAP", "test.map"
    return [
        {
            "n": str(completed) + f" of {len(row.runs)}" * (completed < len(row.runs)),
            ranks: score(ranked_by),
            "95 % interval": _interval(row.scores.get(ranked_by)),
        },
        {
            f"difference to {display_text(baseline)}": (
                NOTHING if difference is None else stats_text(difference, 4, "+")
            ),
            "its 95 % interval": _interval(difference, "+"),
            "p": p_text(p_value),
            "p (Holm)": p_text(adjusted),
        },
        {
            "validation accuracy": score("validation.accuracy"),
            "validation mAP": score("validation.map"),
            other: score(f"test.{other.replace(' ', '_')}"),
            "micro F1": score("test.micro_f1"),
            "macro F1": score("test.macro_f1"),
        },
        {
            "all classes right": score("test.exact"),
            "ECE": score("test.ece"),
            "NLL": score("test.nll"),
            "convergence step": score("convergence_step", 0),
        },
        {"seconds": score("seconds", 0), "images/s": score("images_per_second", 0)},
    ]


def _times(row: Variant, comparison: Comparison) -> dict[str, str]:
    """Return the seconds to each level by title; how many seeds reached it if not all did."""
    cells = {}
    for of in row.reached:
        level = f"accuracy {of.level:g}"
        if of.fraction is not None:
            level = f"{100 * of.fraction:g} % of the {comparison.levels_of}"
        text = f"{len(of.values)} of {len(row.completed_runs)} seeds"
        if of.mean is not None:
            text = stats_text(score_stats(of.values, highest=math.inf), 1)
        cells[f"seconds to {level}"] = text
    return cells


def _marked_names(comparison: Comparison) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return each row's name with its marks, and the footnotes; equal footnotes share a mark."""
    marks: dict[str, int] = {}
    names = []
    for row in comparison.rows:
        numbers = [marks.setdefault(remark, len(marks) + 1) for remark in _remarks(row)]
        name = display_text(" ".join(row.name.split()))
        names.append(" ".join([name, *(f"[{number}]" for number in numbers)]))
    return tuple(names), tuple(f"[{number}] {remark}" for remark, number in marks.items())


def _remarks(row: Variant) -> list[str]:
    remarks = []
    for reason, stated in (("permission", False), ("run defaults of its algorithm", True)):
        overrides = {k: v for k, v in row.overrides.items() if (k in row.run_defaults) == stated}
        if overrides:
            remarks.append(f"differs from other rows by {reason}: {_joined(overrides)}")
    if row.uses_hidden_labels:
        remarks.append("uses the hidden labels: an upper bound, not a competitor")
    for run in row.runs:
        if not run.completed:
            reason = f": {run.reason}" if run.reason else ""
            remarks.append(display_text(f"{run.row}, seed {run.seed}: {run.status}{reason}"))
    return remarks


def _joined(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={setting_text(value)}" for key, value in overrides.items())


def _relative(comparison: Comparison, folder: Path) -> Comparison:
    """Return the comparison with paths of runs relative to a folder, if they are inside it."""

    def relative(run: ComparedRun) -> ComparedRun:
        path = run.folder
        path = path.relative_to(folder) if path.is_relative_to(folder) else path
        return run.model_copy(update={"folder": Path(display_path(path))})

    rows = [
        row.model_copy(update={"runs": tuple(map(relative, row.runs))}) for row in comparison.rows
    ]
    return comparison.model_copy(update={"rows": tuple(rows)})


_CSV_COLUMNS = ("row", "algorithm", "uses_hidden_labels", "overrides", "seed", "status", "reason")


_CURVE_COLUMNS = ("method", "labels")


def _csv_row(row: Variant, run: ComparedRun, curved: bool, times: Sequence[str]) -> Row:
    reached = {of.name: of.values for of in row.reached}
    scores = (row.scores[name].values if name in row.scores else {} for name in SCORES)
    return [
        *map(display_text, (row.name, row.algorithm)),
        "yes" if row.uses_hidden_labels else "no",
        display_text(_joined(row.overrides)),
        run.seed,
        run.status,
        display_text(run.reason),
        *((display_text(row.method), row.labels) if curved else ()),
        *(values.get(run.seed) for values in scores),
        *(reached.get(name, {}).get(run.seed) for name in times),
    ]


def escaped_text(text: str) -> str:
    """Escape a text, but leave the points and brackets of numbers readable in the source."""
    return re.sub(r"(?<=.)\\([()=+%]|\.(?=\d)|:(?= ))", r"\1", markdown.escaped(text))
