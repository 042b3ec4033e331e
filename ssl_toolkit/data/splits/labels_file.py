"""``--labels``: choose the labeled images by a file."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.packed_strings import index_of
from ssl_toolkit.data.readers.label_sets import classes_in, ordered_sets
from ssl_toolkit.data.readers.manifests import inside
from ssl_toolkit.data.readers.rows import (
    SEPARATOR,
    SUFFIXES,
    Record,
    RowErrors,
    records,
    text_lines,
)
from ssl_toolkit.data.splits.draw import Rows
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path


def choose_labeled(table: ImageTable, path: str, base: Path | None) -> tuple[ImageTable, Rows]:
    """Choose the labeled images by a file; the labels of all others of the pool are not used.

    A table (``.csv``, ``.tsv``, ``.jsonl``) has the columns ``path`` and optionally ``label``: rows
    whose label is empty are not labeled, and without the column the data's own are taken. Any
    other file has a path per line. Paths are keys of the table, or lead to files below `base`.

    Args:
        table: The images.
        path: The file.
        base: The data folder, None where there is none.

    Returns:
        The table, in which labeled images that were not chosen are pool ones, and chosen
        unlabeled ones are pool ones with the label of the file; and the rows chosen, ascending. A
        note gives the number of labeled images that were not chosen.

    Raises:
        DataError: The file can't be read, or rows are invalid, reported by line: unknown images,
            validation and test ones, no label, an unknown class, another one than the data's; or
            all labels are empty.
    """
    numbers = _Numbers(table)
    chosen, labels_of_file = _read(table, numbers, Path(path), base)
    labels = table.labels.copy()
    for row, label in labels_of_file.items():
        labels[row] = label
    left_out = int((np.delete(table.splits, chosen) == "labeled").sum())
    table = choose_rows(numbers.labeled(labels), chosen)
    if left_out:
        file = display_path(Path(path))
        note = f"{left_out} labeled images of the data are not in {file}; they are unlabeled"
        table = replace(table, notes=(*table.notes, note))
    return table, chosen


def classes_of(path: Path, *, several: bool = False) -> tuple[str, ...]:
    """Return the classes that a labels file names, sorted as text; empty for a list of paths.

    Args:
        path: The file.
        several: True if a label is several classes, as `classes_in` reads them.

    Raises:
        DataError: The file can't be read.
    """
    bad = RowErrors(display_path(path))
    labels = {label for _, _, label, _ in _lines(path, bad, set(), lists=several)}
    if several:
        return tuple(sorted(frozenset[str]().union(*map(classes_in, labels))))
    return tuple(sorted({*map(class_name, labels)} - {""}))


class _Numbers:
    """The numbers of labels in a table, by their text; new sets of classes get new numbers."""

    def __init__(self, table: ImageTable) -> None:
        self.table = table
        self._classes = {name: number for number, name in enumerate(table.classes)}
        self._sets: dict[frozenset[str], int] | None = None
        if table.label_sets is not None:
            rows = enumerate(table.label_sets)
            self._sets = {frozenset(compress(table.classes, row)): number for number, row in rows}

    def unknown(self, label: str) -> str:
        """Return the first class of a label that the table doesn't have; empty for none."""
        names = {class_name(label)} if self._sets is None else classes_in(label)
        return min(names - self._classes.keys(), default="")

    def number(self, label: str) -> int:
        """Return the number of a label without unknown classes."""
        if self._sets is None:
            return self._classes[class_name(label)]
        return self._sets.setdefault(classes_in(label), len(self._sets))

    def text(self, number: int) -> str:
        """Return the label of a number."""
        if self._sets is None:
            return self.table.classes[number]
        return SEPARATOR.join(sorted([*self._sets][number])) or SEPARATOR

    def labeled(self, labels: NDArray[np.int64]) -> ImageTable:
        """Return the table with other labels (N,), numbers of this object."""
        if self._sets is None:
            return replace(self.table, labels=labels)
        sets, numbers = ordered_sets(self._sets, self.table.classes)
        labels = np.where(labels >= 0, np.append(numbers, -1)[labels], labels)
        return replace(self.table, labels=labels, label_sets=sets)


def choose_rows(table: ImageTable, chosen: Rows) -> ImageTable:
    """Return the table with the chosen and all labeled images in the pool."""
    splits = table.splits.copy()
    splits[chosen] = "pool"
    splits[splits == "labeled"] = "pool"
    return replace(table, splits=splits)


def _read(
    table: ImageTable, numbers: _Numbers, path: Path, base: Path | None
) -> tuple[Rows, dict[int, int]]:
    """Return rows of the table, and the labels of the file for rows without one."""
    bad = RowErrors(display_path(path))
    entries, rows, labeled = listed_rows(table, path, base, bad)
    if labeled and entries and not any(label for _, _, label, _ in entries):
        raise DataError(
            f"{bad.where}: all labels are empty, so no image is labeled; label some, or leave out "
            "the column label to take the labels of the data"
        )
    lines: dict[int, int] = {}
    new_labels: dict[int, int] = {}
    for (line, text, label, _), row in zip(entries, rows.tolist(), strict=True):
        if labeled and not label:
            continue
        if row < 0:
            bad.add(line, f"the data has no image {text!r}")
            continue
        current, part = int(table.labels[row]), table.splits[row]
        unknown = numbers.unknown(label) if labeled else ""
        number = current if unknown or not labeled else numbers.number(label)
        if part in ("validation", "test"):
            bad.add(line, f"{text!r} is a {part} image")
        elif row in lines:
            bad.add(line, f"{text!r} is already in line {lines[row]}")
        elif unknown:
            hint = did_you_mean(unknown, table.classes)
            way_out = "" if hint else "; list all classes to add it: --set classes=[A,B,...]"
            reason = f"has the label {unknown!r}, no class of the data{hint}{way_out}"
            bad.add(line, f"{text!r} {reason}")
        elif number < 0:
            bad.add(line, f"{text!r} has no label in the data; give one in a .csv: path,label")
        elif current >= 0 and current != number:
            name = numbers.text(current)
            bad.add(line, f"{text!r} is a {label!r} here and a {name!r} in the data")
        else:
            new_labels[row] = number
        lines[row] = line
    bad.refuse()
    return np.array(sorted(new_labels), dtype=np.int64), new_labels


def listed_rows(
    table: ImageTable, path: Path, base: Path | None, bad: RowErrors
) -> tuple[list[Record], Rows, bool]:
    """Return the records of a labels file, and the row (n,) of each in the table, -1 for none.

    And True if the file has labels, False if it is a list of images.

    Args:
        table: The images.
        path: The file.
        base: As for `choose_labeled`.
        bad: Collects the lines that can't be read.
    """
    columns = set[str]()
    entries = list(_lines(path, bad, columns, lists=table.label_sets is not None))
    rows = index_of(table.keys, [text for _, text, _, _ in entries])
    for read in (str.strip, lambda text: _key(text.strip(), base)):
        if (rows < 0).any():  # may have spaces around, or be written as paths
            rows = np.maximum(rows, index_of(table.keys, [read(text) for _, text, _, _ in entries]))
    return entries, rows, "label" in columns


def _lines(path: Path, bad: RowErrors, columns: set[str], *, lists: bool = False) -> list[Record]:
    if path.suffix.lower() in {*SUFFIXES} - {".txt"}:
        return list(records(path, bad, "path", [], lists=lists, columns=columns))
    lines = text_lines(path, f"--labels {bad.where}", "\n")  # names may hold other line breaks
    return [
        (number, line.removesuffix("\n"), "", "")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _key(text: str, base: Path | None) -> str:
    """Return the key of a path that isn't written as one."""
    if base is None:
        return os.path.normpath(text)
    top = os.path.abspath(base)
    return inside(os.path.abspath(text), top) or inside(text, top) or ""
