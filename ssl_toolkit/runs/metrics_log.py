"""The rows of ``metrics.jsonl``, and the same rows as a table for spreadsheets."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ssl_toolkit.files import write_atomically
from ssl_toolkit.tabular import row_writer

_TAIL = 1 << 16
"""Bytes at the end of a log that hold its last row."""


def metric_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of ``metrics.jsonl``, up to one that a kill cut short; none without the file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            row = _row(line)
            if not row:
                return
            yield row


def last_step(path: Path) -> int:
    """The step of the last whole row, 0 without one; reads the end of the file only."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return 0
    return next((int(row["step"]) for row in map(_row, reversed(lines)) if row), 0)


def write_table(metrics: Path, table: Path) -> None:
    """Write the rows of metrics as CSV, whole or not at all.

    A column for each name in any row, in the order of their first appearance; the cell is empty
    where a row lacks the name.

    Args:
        metrics: ``metrics.jsonl``; read twice, never held in memory.
        table: ``metrics.csv``.

    Raises:
        OSError: as `write_atomically`.
    """
    names = list(dict.fromkeys(name for row in metric_rows(metrics) for name in row))

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        write_row = row_writer(text, names)
        for row in metric_rows(metrics):
            write_row([row.get(name) for name in names])
        text.detach()  # flushes; the file stays open for its owner

    write_atomically(table, write)


def _row(line: str) -> dict[str, Any]:
    """A line of the log; empty if it isn't whole."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else {}
