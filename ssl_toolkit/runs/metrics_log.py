"""The rows of ``metrics.jsonl``, and the same rows as a table for spreadsheets."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ssl_toolkit.files import append_line, check_format, write_atomically, write_text
from ssl_toolkit.tabular import row_writer

FORMAT = 1
"""The format number in each row of ``metrics.jsonl``."""

_TAIL = 1 << 16
"""Bytes at the end of a log that contain its last row."""


class MetricsRow(BaseModel):
    """The schema of a row: its step, and finite numbers by the name of their metric."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, int | float]
    step: int


def append_row(path: Path, row: Mapping[str, float]) -> None:
    """Append a row of metrics.

    Raises:
        ValueError: a number is not finite.
        OSError: as `append_line`.
    """
    append_line(path, _dump(row))


def metric_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``metrics.jsonl``, without their format number.

    Reading ends at the first damaged row, such as one that a kill has truncated. A missing file
    has no rows.

    Raises:
        ModelError: a row has an unknown format.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            row = _parse(path, line)
            if row is None:
                return
            yield row


def last_step(path: Path) -> int:
    """Return the step of the last complete row, or 0; only the end of the file is read.

    Raises:
        ModelError: as `metric_rows`.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return 0
    rows = (_parse(path, line) for line in reversed(lines))
    return next((int(row["step"]) for row in rows if row is not None), 0)


def truncate_metrics(path: Path, step: int) -> None:
    """Drop the rows after a step, which a resumed run writes again, and a damaged last row."""
    rows = itertools.takewhile(lambda row: row["step"] <= step, metric_rows(path))
    write_text(path, "".join(_dump(row) + "\n" for row in rows))


def write_table(metrics: Path, table: Path) -> None:
    """Write the rows of metrics as CSV, whole or not at all.

    A column for each name in any row, in the order of their first appearance; the cell is empty
    where a row lacks the name.

    Args:
        metrics: ``metrics.jsonl``; read twice, never entirely in memory.
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


def _dump(row: Mapping[str, float]) -> str:
    return json.dumps({"format": FORMAT, **row}, allow_nan=False)


def _parse(path: Path, line: str) -> dict[str, Any] | None:
    """Return a row without its format number; None if it is damaged."""
    try:
        row = json.loads(line)
        MetricsRow.model_validate(row)
    except (ValueError, ValidationError):
        return None
    check_format(path, row.pop("format", None), FORMAT)
    return dict(row)
