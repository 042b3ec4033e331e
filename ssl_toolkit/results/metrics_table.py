"""The rows of ``metrics.jsonl``, and the same rows as a table for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ssl_toolkit.files import write_atomically


def metric_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of ``metrics.jsonl``, up to one that a kill cut short; none without the file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                return
            yield row


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
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(metric_rows(metrics))
        text.detach()  # flushes; the file stays open for its owner

    write_atomically(table, write)
