"""``--pseudo-labels``: unlabeled images that a run trains on as labeled ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.packed_strings import index_of
from ssl_toolkit.data.readers.rows import RowErrors, records
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path, summarize


def pseudo_labeled(table: ImageTable, path: Path) -> tuple[ImageTable, Rows]:
    """Return the table with the labels of a file, and the rows that have one there.

    Args:
        table: The images.
        path: A ``.csv`` with the columns ``path``, which contains keys of the table, and
            ``label``; images without a label are ignored. Others have no effect.

    Raises:
        DataError: The file can't be read, or rows are invalid, reported by line.
    """
    where = f"--pseudo-labels {display_path(path)}"
    if path.suffix.lower() != ".csv":
        raise DataError(f"{where}: give a .csv with the columns path and label")
    bad = RowErrors(where)
    entries = [entry for entry in records(path, bad, "path", []) if entry[2]]
    rows = index_of(table.keys, [key for _, key, _, _ in entries]).tolist()
    labels, lines = table.labels.copy(), dict[int, int]()
    for (line, key, label, _), row in zip(entries, rows, strict=True):
        name = class_name(label)
        if row < 0:
            bad.add(line, f"the data has no image {key!r}")
        elif row in lines:
            bad.add(line, f"{key!r} is already in line {lines[row]}")
        elif name not in table.classes:
            hint = did_you_mean(label, table.classes)
            bad.add(line, f"{key!r} has the label {label!r}, no class of the data{hint}")
        else:
            labels[row] = table.classes.index(name)
            lines[row] = line
    bad.refuse()
    return replace(table, labels=labels), np.array(sorted(lines), dtype=np.int64)


def check_labeled(table: ImageTable, pseudo: ImageTable, rows: Rows) -> None:
    """Refuse pseudo labels of labeled images that are not their labels.

    Args:
        table: The images.
        pseudo: The images with the labels of the file.
        rows: The labeled images.

    Raises:
        DataError: Names them.
    """
    other = rows[table.labels[rows] != pseudo.labels[rows]]
    if len(other):
        names = summarize([table.keys[row] for row in other.tolist()])
        raise DataError(
            f"--pseudo-labels gives labeled images another label: {names}; leave their rows out"
        )


def add_labeled(table: ImageTable, split: Split, rows: Rows, *, keep: bool) -> Split:
    """Return the split with more labeled images.

    Args:
        table: The images.
        split: The split before.
        rows: Images of the pool; those that are labeled already stay as they are.
        keep: True to keep them in the pool too.

    Raises:
        DataError: A row is a validation or a test image.
    """
    held_out = np.intersect1d(rows, np.concatenate([split.validation, split.test]))
    if len(held_out):
        names = summarize([table.keys[row] for row in held_out.tolist()])
        raise DataError(f"--pseudo-labels names validation or test images: {names}")
    new = np.setdiff1d(rows, split.labeled)
    unlabeled = split.unlabeled if keep else split.unlabeled[~np.isin(split.unlabeled, new)]
    note = f"{len(rows):,} of the labeled images have pseudo labels"
    return replace(
        split,
        labeled=np.concatenate([split.labeled, new]),
        unlabeled=unlabeled,
        notes=(*split.notes, note),
    )
