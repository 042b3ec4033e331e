"""What commands write: tables as CSV, TSV or JSON lines, always UTF-8; and pictures."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from PIL import Image

from ssl_toolkit.data.pictures import shown
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import write_atomically
from ssl_toolkit.streams import lost, missed

Row = Sequence[str | float | None]

JSON_LINES = (".jsonl", ".ndjson")


def check_target(path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Refuse an output file that can't be written, before anything is computed.

    Args:
        path: None for the screen.
        suffixes: that its name may end in; none for any.

    Raises:
        ConfigError: another suffix, a folder has the name, or its place can't be written.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise ConfigError(f"{shown(path)}: the name of this file ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{shown(path)}: a folder has this name; choose another one")
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{shown(path)}: {shown(parent)} can't be written; choose another place")


def write_rows(path: Path | None, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows as they come; a file is there as a whole or not at all.

    Printing ends early, without a word, when the reader of the output leaves.

    Numbers have the digits that tell them apart from their neighbours in float32. None is an empty
    cell in CSV and TSV and null in JSON.

    Args:
        path: JSON lines for ``.jsonl`` and ``.ndjson``, TSV for ``.tsv``, else CSV; None prints
            CSV.
        columns: names, unique.
        rows: a value for each column.

    Raises:
        OSError: the file can't be written.
    """
    if path is None:
        # Data for the next program is UTF-8 in any locale; a terminal gets what it can show.
        if hasattr(sys.stdout, "reconfigure") and not sys.stdout.isatty():
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


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a picture as PNG, whole or not at all."""
    write_atomically(path, lambda file: picture.save(file, "PNG"))


def plain(value: Any) -> float:
    """A float32 as the shortest decimal number that means it."""
    return float(str(value))


def _while_read(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        yield row
        if lost(sys.stdout):
            return


def _separated(stream: TextIO, columns: Sequence[str], rows: Iterable[Row], delimiter: str) -> None:
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def _json_lines(stream: TextIO, columns: Sequence[str], rows: Iterable[Row]) -> None:
    for row in rows:
        values = dict(zip(columns, row, strict=True))
        stream.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
