"""The output of commands: tables as CSV, TSV or JSON lines, always UTF-8; and images."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from ssl_toolkit.data.class_names import class_of, guarded
from ssl_toolkit.errors import visible
from ssl_toolkit.files import write_atomically
from ssl_toolkit.stdio import lost, missed

Row = Sequence[str | float | None]

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *JSON_LINES)
"""Suffixes of a table."""


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...


def write_rows(path: Path | None, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as they arrive; a file is written whole or not at all.

    Printing stops silently when the reader of the output closes it.

    None is an empty cell in CSV and TSV and null in JSON. Texts are guarded (see
    `class_names.guarded`): all texts in CSV and TSV, in JSON labels that would be read differently.

    Args:
        path: Path to a file: JSON lines for ``.jsonl`` and ``.ndjson``, TSV for ``.tsv``, else CSV;
            None prints CSV.
        columns: Unique names.
        rows: One value per column.

    Raises:
        OSError: The file can't be written.
    """
    if path is None:
        # Piped data is UTF-8 in any locale; a terminal gets its own encoding.
        if sys.stdout.isatty():
            _separated(_Terminal(), columns, rows, ",")
            return
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")
        _separated(sys.stdout, columns, _while_read(rows), ",")
        if error := missed(sys.stdout):
            raise error
        return
    suffix = path.suffix.lower()

    def write(binary: Any) -> None:
        text = TextIOWrapper(binary, encoding="utf-8", newline="")
        if suffix in JSON_LINES:
            _json_lines(text, columns, rows)
        else:
            _separated(text, columns, rows, "\t" if suffix == ".tsv" else ",")
        text.detach()

    write_atomically(path, write)


def write_image(path: Path, image: Image.Image) -> None:
    """Write an image as PNG, whole or not at all."""
    write_atomically(path, lambda file: image.save(file, "PNG"))


def plain(value: Any) -> float:
    """Return a float32 as the shortest decimal number that denotes it."""
    return float(str(value))


def _while_read(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        yield row
        if lost(sys.stdout):
            return


class _Terminal:
    """Print one row per line, with control characters escaped."""

    def write(self, text: str) -> None:
        sys.stdout.write(visible(text.removesuffix("\n")) + "\n")


def row_writer(
    stream: _Stream, columns: Sequence[str], delimiter: str = ","
) -> Callable[[Row], None]:
    """Write the header of a CSV; return a function that writes a row, its texts guarded."""
    labels = [name == "label" for name in columns]
    minimal, quoted = (
        csv.writer(stream, delimiter=delimiter, lineterminator="\n", quoting=quoting)
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )

    def write(row: Row) -> None:
        cells = [
            guarded(cell, as_label=is_label) if isinstance(cell, str) else cell
            for cell, is_label in zip(row, labels, strict=True)
        ]
        # The writer doesn't quote a bare carriage return, which ends a row for every reader.
        broken = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoted if broken else minimal).writerow(cells)

    write(columns)
    return write


def _separated(
    stream: _Stream, columns: Sequence[str], rows: Iterable[Row], delimiter: str
) -> None:
    write = row_writer(stream, columns, delimiter)
    for row in rows:
        write(row)


def _json_lines(stream: _Stream, columns: Sequence[str], rows: Iterable[Row]) -> None:
    for row in rows:
        values = dict(zip(columns, row, strict=True))
        label = values.get("label")
        if isinstance(label, str) and class_of(label) != label:
            values["label"] = guarded(label, as_label=True)
        stream.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
