"""The images to label next: a CSV that `label next` writes and `label serve` reads."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ssl_toolkit.data.class_names import unguarded
from ssl_toolkit.data.readers.rows import RowErrors, text_lines
from ssl_toolkit.errors import DataError
from ssl_toolkit.tabular import write_rows
from ssl_toolkit.text import display_path, summarize

COLUMNS = ("path", "score", "guess", "confidence", "method")


class Queued(NamedTuple):
    """An image to label."""

    path: str
    """Its key in the data, as in a labels file."""
    score: float | None
    """Value by which the method chose it, if it has one."""
    guess: str
    """The most probable class; empty if nothing predicts one."""
    confidence: float | None
    """Its probability."""
    method: str


def write_queue(path: Path | None, images: Sequence[Queued]) -> None:
    """Write the queue as CSV, whole or not at all; None prints it.

    Raises:
        OSError: The file can't be written.
    """
    write_rows(path, COLUMNS, images)


def read_queue(path: Path) -> list[Queued]:
    """Read a queue; of its columns only ``path`` is needed.

    Raises:
        DataError: The file can't be read, has no column ``path``, or rows are invalid.
    """
    bad = RowErrors(display_path(path))
    lines = csv.reader(text_lines(path, bad.where), strict=True)
    images, seen = list[Queued](), dict[str, int]()
    try:
        header = [name.strip().lower() for name in next(lines, [])]
        if "path" not in header:
            raise DataError(
                f"{bad.where}: has no column 'path': its first line is {summarize(header)!r}; give "
                "a file that `ssl-toolkit label next` wrote"
            )
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header):
                bad.add(lines.line_num, f"{len(cells)} columns, the first line has {len(header)}")
                continue
            row = dict(zip(header, cells, strict=True))
            key = unguarded(row["path"])
            if not key or key in seen:
                bad.add(
                    lines.line_num,
                    f"{key!r} is already in line {seen[key]}" if key else "has no path",
                )
                continue
            seen[key] = lines.line_num
            try:
                score, confidence = (_number(row.get(name, "")) for name in ("score", "confidence"))
            except ValueError as error:
                bad.add(lines.line_num, str(error))
                continue
            guess, method = unguarded(row.get("guess", "")), unguarded(row.get("method", ""))
            images.append(Queued(key, score, guess, confidence, method))
    except csv.Error as error:
        raise DataError(f"{bad.where}, line {lines.line_num}: {error}") from None
    bad.refuse()
    return images


def _number(cell: str) -> float | None:
    if not cell.strip():
        return None
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{cell!r} is no number")
    return number
