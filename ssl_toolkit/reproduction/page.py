"""Show measured results beside published numbers: ``report.md``, and lines on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ssl_toolkit import markdown
from ssl_toolkit.console import Console
from ssl_toolkit.files import write_text
from ssl_toolkit.reports.tables import escaped_text, setting_text
from ssl_toolkit.reports.text_table import NOTHING
from ssl_toolkit.reproduction.listing import Footnotes, marked
from ssl_toolkit.reproduction.results import Reproduction, RowResult

JSON, MARKDOWN = "report.json", "report.md"
EXPLANATION = (
    "Published numbers were measured by others, as the column beside them says. ± is the sample "
    "standard deviation over seeds; 95 % intervals are of the mean over seeds: Student's t on the "
    "logit scale."
)


class _Line(NamedTuple):
    """The cells of a row as text."""

    name: str
    measured: str
    seeds: str
    interval: str
    published: str
    measured_by: str
    marks: str


_HEADS = ("row", "measured here", "n", "95 % interval", "published", "measured by", "notes")


def write_results(results: Reproduction, folder: Path) -> Path:
    """Write ``report.json`` and ``report.md``, each whole or not at all; return the latter."""
    results.write(folder / JSON)
    write_text(folder / MARKDOWN, markdown_page(results))
    return folder / MARKDOWN


def markdown_page(results: Reproduction) -> str:
    """Return the table of all rows as Markdown."""
    lines, notes = _lines(results.rows)
    rows = [[escaped_text(line.name), *line[1:]] for line in lines]
    folders = dict.fromkeys(row.comparison for row in results.rows if row.comparison)
    parts = [
        f"# {escaped_text(_title(results))}",
        EXPLANATION,
        markdown.table(_HEADS, rows),
        "  \n".join(map(escaped_text, notes)),
        markdown.bullets(f"[{name}]({name}/comparison.md)" for name in folders),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def show_results(results: Reproduction, console: Console) -> None:
    """Print the rows that were run, a line each, and the notes."""
    lines, notes = _lines([row for row in results.rows if row.runs])
    console.say(_title(results), important=True)
    for line in lines:
        here = f"{line.name}: measured here {line.measured}, n {line.seeds}"
        here += f", 95 % interval {line.interval}" if line.interval != NOTHING else ""
        beside = "no published number"
        if line.published != NOTHING:
            beside = f"published {line.published} ({line.measured_by})"
        console.say(f"{here}; {beside} {line.marks}".rstrip(), important=True)
    for note in notes:
        console.say(note, important=True)


def _title(results: Reproduction) -> str:
    scales = sorted({row.scale for row in results.rows if row.runs and row.scale != 1})
    scaled = f", runs{' and'.join(map(marked, scales))}" if scales else ""
    return f"{results.table}: {results.title} ({results.paper}){scaled}"


def _lines(rows: Iterable[RowResult]) -> tuple[list[_Line], list[str]]:
    """Return the cells of rows, and their notes, which rows with equal ones share."""
    notes = Footnotes()
    lines = [_line(row, notes.marks(_notes(row))) for row in rows]
    return lines, notes.lines()


def _line(row: RowResult, marks: str) -> _Line:
    measured, published = row.measured, row.published
    text, interval, count = NOTHING, NOTHING, len(measured.top1) if measured else 0
    if measured is not None:
        text = f"{measured.mean:.2f}"
        text += "" if measured.deviation is None else f" ± {measured.deviation:.2f}"
        text += f" %{marked(row.scale)}"
        if measured.interval:
            interval = f"{measured.interval[0]:.2f} to {measured.interval[1]:.2f} %"
    return _Line(
        name=f"{row.id} {row.method}".rstrip() + marked(row.scale),
        measured=text if row.runs else "not run",
        seeds=f"{count} of {row.runs}" if count < row.runs else str(count),
        interval=interval,
        published=f"{published.top1:.2f} %" if published else NOTHING,
        measured_by=published.by if published else NOTHING,
        marks=marks,
    )


def _notes(row: RowResult) -> Iterator[str]:
    """Yield what a reader must know before comparing the numbers."""
    if row.scale != 1:
        yield (
            f"scale {row.scale:g}: steps, schedules and ramps are shortened by this factor; the "
            "published number is of the full training"
        )
    if row.changed:
        changed = ", ".join(f"{key}={setting_text(value)}" for key, value in row.changed.items())
        yield f"measured with settings that differ from the recipe: {changed}"
    for problem in row.problems:
        yield f"{row.id}, {problem}"
    if row.published and row.published.note:
        yield f"published: {row.published.note}"
    for deviation in row.deviations:
        yield f"the recipe differs from the publication: {deviation}"
