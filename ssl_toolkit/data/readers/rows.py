"""The rows of a list of images as they are written: CSV, TSV, JSONL, ``path label`` lines."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ssl_toolkit.data.class_names import class_of, unguarded
from ssl_toolkit.data.images.files import FILE_SUFFIXES
from ssl_toolkit.data.images.kinds import head_of, named_kind
from ssl_toolkit.data.label_values import label_text
from ssl_toolkit.errors import DataError
from ssl_toolkit.text import summarize

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt")
"""Extensions, in lower case, that make a file a list of images."""

MOST_FAULTS = 20
"""Number of invalid rows that are reported one by one; the rest are counted."""

SEPARATOR = "|"
"""Character between the classes of an image under ``--task multilabel``."""

LABEL_LENGTH = 2**20
"""Most characters, or bytes, of a label."""

LINE_LENGTH = 16 * 2**20
"""Most characters of a line of a list, so that a file without lines doesn't fill the memory."""

Record = tuple[int, str, str, str]
"""Number of the line, path, class and split; class and split are empty where there is none."""


@dataclass
class RowErrors:
    """The errors of a file, reported together."""

    where: str
    unit: str = "line"
    """The unit of the numbers."""
    messages: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, line: int, reason: str) -> None:
        """Remember that a line is wrong."""
        self.count += 1
        if self.count <= MOST_FAULTS:
            self.messages.append(f"{self.where}, {self.unit} {line}: {reason}")

    def refuse(self) -> None:
        """Do nothing when all rows are right.

        Raises:
            DataError: There are faults; the first ones by line, then how many more.
        """
        if self.count > MOST_FAULTS:
            self.messages.append(
                f"{self.where}: {self.count - MOST_FAULTS:,} more rows are invalid"
            )
        if self.messages:
            raise DataError(self.messages)


def records(
    path: Path,
    bad: RowErrors,
    column: str,
    notes: list[str],
    *,
    lists: bool = False,
    columns: set[str] | None = None,
) -> Iterator[Record]:
    """Yield the rows of a manifest of any kind.

    Args:
        path: The file.
        bad: Takes the rows that can't be read.
        column: The one that holds the path.
        notes: Takes a line on columns that were ignored.
        lists: True to accept JSON lists of classes, which are joined by `SEPARATOR`.
        columns: Takes ``label`` if the file has this column, or key in some line.

    Raises:
        DataError: The file is missing, not UTF-8, or has no such column.
    """
    suffix = path.suffix.lower()
    lines = text_lines(path, bad.where)
    columns = set() if columns is None else columns
    if suffix == ".txt":
        yield from _listed(lines, bad, columns)
    elif suffix in (".jsonl", ".ndjson"):
        yield from _objects(lines, bad, column, lists, columns)
    else:
        yield from _table(lines, suffix, bad, column, notes, columns)


def text_lines(path: Path, where: str, newline: str = "") -> Iterator[str]:
    """Yield the lines of a UTF-8 file.

    Args:
        path: Path to the file.
        where: The file, for messages.
        newline: As for `open`.

    Raises:
        DataError: The file is missing, not UTF-8, or has a line longer than `LINE_LENGTH`.
    """
    try:
        if kind := named_kind(head_of(path)):
            raise DataError(f"can't read {where}: {kind}")
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            for number, line in enumerate(iter(partial(file.readline, LINE_LENGTH), ""), 1):
                if len(line) == LINE_LENGTH:
                    raise DataError(
                        f"{where}, line {number}: has more than {LINE_LENGTH:,} characters; a "
                        "line names one image"
                    )
                yield line
    except OSError as error:
        raise DataError(f"can't read {where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 text (byte {error.start} of a block); save it as UTF-8"
        ) from None


_SUFFIX = "|".join(re.escape(suffix) for suffix in sorted(FILE_SUFFIXES))
_PATH_ENDS = re.compile(rf"(.*(?:{_SUFFIX}))(?:\s+(.*))?", re.IGNORECASE)


def _listed(lines: Iterable[str], bad: RowErrors, columns: set[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if "\t" in text:
            path, _, label = text.rpartition("\t")
        elif match := _PATH_ENDS.fullmatch(text):  # spaces in the path, and in the label, are fine
            path, label = match[1], match[2] or ""
        elif text.count(" ") > 1:
            bad.add(
                number,
                f"can't find the end of the path in {text!r}; put a tab between path and label, "
                "or write a .csv with the columns path and label",
            )
            continue
        else:
            path, _, label = text.partition(" ")
        if label:
            columns.add("label")
        if text:
            yield number, path.rstrip(), class_of(label), ""


def _table(
    lines: Iterator[str],
    suffix: str,
    bad: RowErrors,
    column: str,
    notes: list[str],
    found: set[str],
) -> Iterator[Record]:
    first = next(lines, "")
    delimiter = "\t" if suffix == ".tsv" else max(",;\t", key=first.count)
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        header = next(csv.reader([first], delimiter=delimiter, skipinitialspace=True), [])
        names = [name.strip().lower() for name in header]
        columns = (column, "label" if "label" in names else "labels", "split")
        if repeated := [name for name in columns if names.count(name) > 1]:
            raise DataError(f"{bad.where} has the column {repeated[0]} twice; keep one of them")
        if column not in names:
            raise DataError(
                f"{bad.where} has no column {column!r}: its first line is {summarize(header)!r}; "
                f"it names the columns: {column}, and optionally label and split"
            )
        if others := [name for name in names if name not in columns]:
            notes.append(f"columns of {bad.where} that are not used: {summarize(others)}")
        width = len(names)
        path_at, label_at, split_at = (names.index(n) if n in names else -1 for n in columns)
        if label_at >= 0:
            found.add("label")
        for row in rows:
            if len(row) != width:
                if row:
                    bad.add(rows.line_num + 1, f"{len(row)} columns, the first line has {width}")
                continue
            label = class_of(row[label_at]) if label_at >= 0 else ""
            split = row[split_at] if split_at >= 0 else ""
            yield rows.line_num + 1, unguarded(row[path_at]), label, split
    except csv.Error as error:
        raise DataError(f"{bad.where}, line {rows.line_num + 1}: {error}") from None


def _objects(
    lines: Iterable[str], bad: RowErrors, column: str, lists: bool, columns: set[str]
) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad.add(number, f"no JSON ({error})")
            continue
        if not isinstance(content, dict) or not isinstance(content.get(column), str):
            bad.add(number, f"no JSON object with a text under {column!r}")
            continue
        if not content.keys().isdisjoint(("label", "labels")):
            columns.add("label")
        value = content.get("label", content.get("labels"))
        label = _joined(value) if lists else label_text(value)
        split = content.get("split") or ""
        if isinstance(value, list) and not lists:
            bad.add(number, "label is a list; --task multilabel reads several classes per image")
        elif label is None or not isinstance(split, str):
            bad.add(number, "label and split must be a text, a whole number or null")
        else:
            yield number, content[column], class_of(label), split


def _joined(value: Any) -> str | None:
    """Return a list of classes as one text, `SEPARATOR` for an empty one; as `label_text`."""
    if not isinstance(value, list):
        return label_text(value)
    texts = [label_text(item) for item in value]
    if any(not text or SEPARATOR in text for text in texts):
        return None
    return SEPARATOR.join(map(str, texts)) or SEPARATOR
