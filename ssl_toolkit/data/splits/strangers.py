"""Mix images of no class into the pool of unlabeled images, for experiments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.interfaces.datasets import STRANGER

PREFIX = "strangers/"
"""Start of the keys of strangers."""

_PART = "stranger"  # of rows that no split draws from


def with_strangers(table: ImageTable, strangers: ImageTable, name: str) -> ImageTable:
    """Return a table with the images of another one as candidates for `add_strangers`.

    Args:
        table: The images of the classes.
        strangers: Images of no class; their labels and parts are ignored.
        name: Of the strangers, for messages.

    Raises:
        DataError: One of the tables holds features, or their images differ in channels or bits.
    """
    for one, source in ((table, "the data"), (strangers, name)):
        if one.features is not None:
            raise DataError(f"--strangers {name}: {source} holds features; images are needed")
    if table.label_sets is not None:
        raise DataError(f"--strangers {name}: images of no class need --task multiclass")
    if table.pixels != strangers.pixels:
        raise DataError(
            f"--strangers {name}: its images have {strangers.pixels}, those of the data "
            f"{table.pixels}; set --channels and --bits"
        )
    known, count = len(table.keys), len(strangers.keys)

    def read(rows: NDArray[np.int64], size: int) -> NDArray[np.unsignedinteger[Any]]:
        rows = np.asarray(rows, dtype=np.int64)
        of_classes = rows < known
        first = table.read(rows[of_classes], size)
        second = strangers.read(rows[~of_classes] - known, size)
        images = np.empty((len(rows), *(first if len(first) else second).shape[1:]), first.dtype)
        images[of_classes], images[~of_classes] = first, second
        return images

    def digest(row: int) -> str:
        one, own = (table, row) if row < known else (strangers, row - known)
        assert one.digest is not None
        return one.digest(own)

    digests = table.digest is not None and strangers.digest is not None
    return replace(
        table,
        keys=PackedStrings([*table.keys, *(PREFIX + key for key in strangers.keys)]),
        labels=np.concatenate([table.labels, np.full(count, STRANGER)]),
        splits=np.concatenate([table.splits, np.full(count, _PART)]),
        read=read,
        digest=digest if digests else None,
        files=None,
    )


def add_strangers(table: ImageTable, split: Split, fraction: float, seed: int, name: str) -> Split:
    """Return the split with strangers in its pool; all other images stay the same.

    The first ones in the order of SHA-256(seed, key) are added, so that a larger fraction contains
    those of a smaller one.

    Args:
        table: As of `with_strangers`.
        split: Of the table.
        fraction: Share of the pool that are strangers, in (0, 1).
        seed: Seed of the run.
        name: Of the strangers, for messages.

    Raises:
        DataError: There are too few strangers.
    """
    rows = np.flatnonzero(table.splits == _PART)
    count = stranger_count(len(split.unlabeled), fraction)
    if count > len(rows):
        largest = len(rows) / (len(rows) + max(1, len(split.unlabeled)))
        raise DataError(
            f"--strangers-fraction {fraction:g} needs {count:,} images of no class beside the "
            f"{len(split.unlabeled):,} unlabeled ones, and {name} has {len(rows):,}; use at most "
            f"{np.floor(largest * 100) / 100:g}"
        )
    drawn = np.sort(_hashed(table.keys, rows, seed)[:count])
    total = len(split.unlabeled) + count
    note = f"{count:,} of the {total:,} unlabeled images are strangers, images of {name}"
    return replace(
        split, unlabeled=np.concatenate([split.unlabeled, drawn]), notes=(*split.notes, note)
    )


def count_strangers(table: ImageTable, split: Split) -> int:
    """Return the number of strangers in the pool."""
    return int((table.labels[split.unlabeled] == STRANGER).sum())


def stranger_count(unlabeled: int, fraction: float) -> int:
    """Return the number of strangers that makes them this fraction of the pool.

    Args:
        unlabeled: Number of the other unlabeled images.
        fraction: In (0, 1).
    """
    return round(fraction / (1 - fraction) * unlabeled)


def _hashed(keys: Sequence[str], rows: Rows, seed: int) -> Rows:
    def rank(row: int) -> bytes:
        return hashlib.sha256(f"strangers/{seed}\0{keys[row]}".encode()).digest()

    return np.array(sorted(rows.tolist(), key=rank), dtype=np.int64)
