"""Rows of the tables of the pages on results that are about one algorithm."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from site_pages.sources import DOCS, FENCED, with_site_links

RESULTS = tuple(
    f"results/{topic}.md"
    for topic in ("random-weights", "pretrained", "labeling", "uneven-classes", "strangers")
)
PAGES = (*RESULTS, "explanation/stability-of-training.md", "how-to/*.md")
HEADING = re.compile(r"^#+ (.+)$")
ACCURACY = re.compile(r"accuracy|^mean$")
OTHER = re.compile(r"difference|seconds|step|AUROC|among|correct")
"""Columns of a table with accuracies that have other numbers."""
VALUE = re.compile(r"\**(\d+\.\d+)")
MEAN = re.compile(rf"{VALUE.pattern}\** ±")
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z0-9*`])")
BASELINE = "supervised"


@dataclass(frozen=True)
class Table:
    """A table with measured accuracies."""

    page: str
    heading: str
    label: str
    """The sentence that introduces the table, if it ends with a colon."""
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Cells; an empty first one, which continues the row above, is filled."""

    @property
    def columns(self) -> list[int]:
        """The columns with accuracies in percent: named so, or a mean and a deviation."""
        places = [place for place, name in enumerate(self.head) if place and not OTHER.search(name)]
        named = [place for place in places if ACCURACY.search(self.head[place])]
        return named or [
            place for place in places if any(MEAN.match(row[place]) for row in self.rows)
        ]

    def rows_of(self, name: str) -> list[tuple[str, ...]]:
        """Return the rows of an algorithm, or of an add-on with any algorithm."""
        return [
            row
            for row in self.rows
            if any(normal(name) in (cell, *cell.split("+")[1:]) for cell in map(normal, row[:2]))
        ]

    def baseline(self, row: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the row that another is compared with.

        That is supervised training or, for a row with an add-on, the same algorithm without it.
        """
        bases = [cell.split("+")[0] for cell in map(normal, row[:2]) if "+" in cell]
        wanted = bases[0] if bases else BASELINE
        for other in self.rows_of(wanted):
            if normal(other[0]) == wanted or (other[0] == row[0] and normal(other[1]) == wanted):
                return other
        return None

    def labels(self, row: tuple[str, ...], column: int) -> list[str]:
        """Return the row, column and table that identify a number."""
        parts = [cell for cell in row[:2] if not VALUE.match(cell)]
        return [*parts, self.head[column], *filter(None, [self.label.rstrip(":")])]


def normal(text: str) -> str:
    """Return a name without case, punctuation and what follows in brackets, a comma or `at`."""
    text = re.split(r"[(,]| at ", re.sub(r"[*`]", "", text))[0]
    return re.sub(r"[^a-z0-9+]", "", text.lower())


def cells_of(line: str) -> tuple[str, ...]:
    """Return the cells of a line of a table."""
    return tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])


@functools.cache
def tables() -> tuple[Table, ...]:
    """Return the tables with measured accuracies, in the order of the pages."""
    found = []
    for pattern in PAGES:
        for path in sorted(DOCS.glob(pattern)):
            page = path.relative_to(DOCS).as_posix()
            found += _tables_of(page, path.read_text(encoding="utf-8"))
    return tuple(found)


def _tables_of(page: str, text: str) -> Iterator[Table]:
    heading = label = ""
    paragraph: list[str] = []
    lines: list[tuple[str, ...]] = []
    for line in [*FENCED.sub("", text).splitlines(), ""]:
        if match := HEADING.match(line):
            heading, label = match[1], ""
        if line.startswith("|"):
            row = cells_of(line)
            filled = len(lines) > 2 and not row[0]
            lines.append((lines[-1][0], *row[1:]) if filled else row)
            continue
        if lines and (page in RESULTS or any(map(ACCURACY.search, lines[0]))):
            yield Table(page, heading, label, lines[0], tuple(lines[2:]))
        lines = []
        if line:
            paragraph.append(line)
            last = SENTENCE.split(" ".join(paragraph))[-1]
            label = last if last.endswith(":") else ""
        else:
            paragraph = []


def sections_of(name: str, docname: str) -> Iterator[str]:
    """Yield the part of a page with the measured rows of an algorithm or add-on."""
    yield "## Measured\n"
    found = [(table, rows) for table in tables() if (rows := table.rows_of(name))]
    if not found:
        yield "No table of [Results](../../results/results.md) has a row of it.\n"
        return
    yield from _failures(name, found, docname)
    yield "The rows of the tables; their sections state the conditions.\n"
    for table, rows in found:
        shown: list[tuple[str, ...]] = []
        for row in rows:
            pair = (table.baseline(row), row)
            shown += [one for one in pair if one is not None and one not in shown]
        lines = [table.head, ("---",) * len(table.head), *shown]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        label = f" {table.label}" if table.label else ""
        text = f"{_link(table, docname)}:{label}\n\n{text}\n"
        yield with_site_links(text, DOCS / docname, docname)


def _failures(
    name: str, found: list[tuple[Table, list[tuple[str, ...]]]], docname: str
) -> Iterator[str]:
    """Yield where the accuracy was below that of the baseline, of all rows with one."""
    compared, below = 0, []
    for table, rows in found:
        for row in rows:
            baseline = table.baseline(row)
            for column in table.columns if baseline and baseline != row else ():
                value, other = VALUE.match(row[column]), VALUE.match(baseline[column])
                if value is None or other is None:
                    continue
                compared += 1
                if float(value[1]) < float(other[1]):
                    where = f"{_link(table, docname)}, {', '.join(table.labels(row, column))}"
                    below.append(f"- {value[1]} % against {other[1]} %: {where}")
    if not compared or name == BASELINE:
        return
    addons = any("+" in normal(cell) for _, rows in found for row in rows for cell in row[:2])
    against = "the same algorithm without it" if addons else "supervised training"
    if below:
        yield f"Means below {against}, {len(below)} of {compared}:\n"
        yield "\n".join(below) + "\n"
    else:
        yield f"None of {compared} means is below {against} in the same table.\n"


def _link(table: Table, docname: str) -> str:
    path = os.path.relpath(DOCS / table.page, (DOCS / docname).parent)
    anchor = re.sub(r"[^\w\- ]", "", table.heading.lower()).replace(" ", "-")
    heading = table.heading.replace("[", "\\[").replace("]", "\\]")
    return f"[{heading}]({path}#{anchor})"
