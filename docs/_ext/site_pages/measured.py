"""Rows of the tables of the pages on results that are about one algorithm."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from site_pages.sources import DOCS, FENCED, with_site_links

PAGES = ("results/*.md", "explanation/stability-of-training.md", "how-to/*.md")
HEADING = re.compile(r"^#+ (.+)$")
BASELINE = "supervised"


@dataclass(frozen=True)
class Table:
    """A table with measured accuracies."""

    page: str
    heading: str
    label: str
    """The line that introduces the table, if it ends with a colon."""
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Cells; an empty first one, which continues the row above, is filled."""

    @property
    def accuracy(self) -> int | None:
        """The column of the accuracy in percent."""
        for place, name in enumerate(self.head):
            if place and re.search(r"accuracy|^mean$", name) and "difference" not in name:
                return place
        return None

    def rows_of(self, name: str) -> list[tuple[str, ...]]:
        """Return the rows of an algorithm, or of an add-on with any algorithm."""
        return [
            row
            for row in self.rows
            if any(normal(name) in (cell, *cell.split("+")[1:]) for cell in map(normal, row[:2]))
        ]

    def value(self, row: tuple[str, ...]) -> float | None:
        """Return the accuracy of a row."""
        if self.accuracy is None or self.accuracy >= len(row):
            return None
        match = re.match(r"\**(\d+\.\d+)", row[self.accuracy])
        return float(match[1]) if match else None

    def baseline(self, row: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the row of supervised training that another is compared with."""
        for other in self.rows_of(BASELINE):
            if normal(other[0]) == BASELINE or other[0] == row[0]:
                return other
        return None


def normal(text: str) -> str:
    """Return a name without case, punctuation and what follows it in brackets or a comma."""
    text = re.split(r"[(,]", re.sub(r"[*`]", "", text))[0]
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
    lines: list[tuple[str, ...]] = []
    for line in [*FENCED.sub("", text).splitlines(), ""]:
        if match := HEADING.match(line):
            heading, label = match[1], ""
        if line.startswith("|"):
            row = cells_of(line)
            filled = len(lines) > 2 and not row[0]
            lines.append((lines[-1][0], *row[1:]) if filled else row)
            continue
        if lines and any(re.search(r"accuracy|^mean$|each seed", name) for name in lines[0]):
            yield Table(page, heading, label, lines[0], tuple(lines[2:]))
        lines = []
        label = line if line.endswith(":") else "" if line else label


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
    """Yield where the mean was below that of supervised training, of all that can be compared."""
    compared, below = 0, []
    for table, rows in found:
        for row in rows:
            baseline = table.baseline(row)
            value = table.value(row)
            other = table.value(baseline) if baseline and baseline != row else None
            if value is None or other is None:
                continue
            compared += 1
            if value < other:
                what = f", {table.label.rstrip(':')}" if table.label else ""
                below.append(f"- {value} % against {other} %: {_link(table, docname)}{what}")
    if not compared or name == BASELINE:
        return
    if below:
        yield f"Below supervised training in {len(below)} of {compared} rows:\n"
        yield "\n".join(below) + "\n"
    else:
        yield (
            f"In none of {compared} rows is the accuracy below that of supervised training in the "
            "same table.\n"
        )


def _link(table: Table, docname: str) -> str:
    path = os.path.relpath(DOCS / table.page, (DOCS / docname).parent)
    anchor = re.sub(r"[^\w\- ]", "", table.heading.lower()).replace(" ", "-")
    heading = table.heading.replace("[", "\\[").replace("]", "\\]")
    return f"[{heading}]({path}#{anchor})"
