"""Describe rows of published tables: numbers, deviations, data and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ssl_toolkit.data.load import named_dataset
from ssl_toolkit.errors import UserError, one_line
from ssl_toolkit.multirun.cost import StepTimes
from ssl_toolkit.recipes import Published
from ssl_toolkit.reproduction.rows import TableRow

CLASSES = 10
"""Number of classes for measuring where the data is not found; it hardly changes the time."""


def list_rows(rows: Sequence[TableRow]) -> Iterator[str]:
    """Yield the lines that describe rows of a table, whose steps are measured on this device."""
    first, scale = rows[-1].recipe, rows[-1].config.settings.scale
    yield f"{first.table}{marked(scale)}: {first.title} ({first.paper})"
    times, data, notes = StepTimes(), _Data(), Footnotes()
    for row in rows:
        yield f"{row.planned.name}: {_setting(row)}"
        yield f"  published: {published_text(row.recipe.published)}"
        if deviations := row.recipe.deviations:
            yield f"  deviations: {notes.marks(deviations)}"
        if weights := row.config.settings.weights or row.recipe.weights_of:
            missing = weights != row.recipe.weights_of and not Path(weights).exists()
            way_out = " (not found; give the file with --weights FILE)" * missing
            yield f"  initial weights: {weights}{way_out}"
        fault = data.fault(row)
        yield f"  data: {f'not usable {notes.marks([fault])}' if fault else 'found'}"
        yield f"  cost{marked(scale)}: {_cost(row, times, data)}"
    yield from notes.lines()


class Footnotes:
    """Numbers notes; equal ones share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def marks(self, notes: Iterable[str]) -> str:
        """Return the marks of notes: ``[1] [3]``."""
        numbers = (self._numbers.setdefault(note, len(self._numbers) + 1) for note in notes)
        return " ".join(f"[{number}]" for number in numbers)

    def lines(self) -> list[str]:
        """Return a line for each note that was marked."""
        return [f"[{number}] {note}" for note, number in self._numbers.items()]


def marked(scale: float) -> str:
    """Return a mark for what is shortened; empty for the full length."""
    return f" at scale {scale:g}" if scale != 1 else ""


def published_text(published: Published | None) -> str:
    """Return a published number with who measured it, in one line."""
    if published is None:
        return "no number"
    note = f"; {published.note}" if published.note else ""
    return f"{published.top1:.2f} % ({published.by}){note}"


class _Data:
    """Looks for data sets, each once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str | None, str | None], tuple[str, int]] = {}

    def fault(self, row: TableRow) -> str:
        """Return why the data of a row is not usable; empty if it is."""
        return self._look(row)[0]

    def classes(self, row: TableRow) -> int:
        """Return the number of classes, estimated from the labels where the data is not found."""
        published, per_class = row.recipe.published, row.config.settings.labels_per_class
        if known := self._look(row)[1]:
            return known
        if published and isinstance(published.labels, int) and per_class:
            return max(2, published.labels // per_class)
        return CLASSES

    def _look(self, row: TableRow) -> tuple[str, int]:
        settings = row.config.settings
        if settings.data is not None:
            return "" if Path(settings.data).exists() else f"{settings.data} not found", 0
        key = settings.dataset, settings.root
        if key not in self._found:
            try:
                root = None if settings.root is None else Path(settings.root)
                table = named_dataset(settings.dataset).load(root)
                self._found[key] = "", len(table.classes)
            except UserError as error:
                self._found[key] = one_line(error.messages[0]), 0
        return self._found[key]


def _setting(row: TableRow) -> str:
    settings, published = row.config.settings, row.recipe.published
    labels = ""
    if published and published.labels is not None:
        count = published.labels
        labels = f", {count:,} labels" if isinstance(count, int) else f", {count} labels"
    initial = ", pre-trained" if settings.pretrained else ""
    return f"{settings.algo}, {settings.dataset}{labels}, {settings.backbone}{initial}"


def _cost(row: TableRow, times: StepTimes, data: _Data) -> str:
    try:
        cost = times.cost(row.config, data.classes(row))
    except UserError as error:
        return f"not measured: {one_line(error.messages[0])}"
    return cost.describe(len(row.seeds)) if cost else "seconds (no steps)"
