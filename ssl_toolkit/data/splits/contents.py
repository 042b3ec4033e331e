"""Digests of the bytes and labels of the images of a split, independent of their names."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.interfaces import ImageTable

Entries = NDArray[np.uint8]
"""(n, 20): for each image 16 bytes of a digest and 4 of its label; see `_labels`."""

ENTRY_BYTES = 20
NAMED = ("labeled", "validation", "test")
"""Parts with one entry per image; the pool has one digest of all its entries."""

_CONTENT_BYTES = 16
_INDEX = "index "
_BLOCK = 4096
_UNKNOWN_SIZE = 64
"""Side in pixels at which images of a table without digests are read; the same for every run, so
that digests don't depend on the image size of the run."""


@dataclass(frozen=True, eq=False)
class Content:
    """The content and labels of the images of a split, in the order of its parts."""

    labeled: Entries
    validation: Entries
    test: Entries
    unlabeled: str
    """SHA-256 over the entries of all unlabeled images. Streamed ones are not read before training:
    instead of their bytes it covers their offset and length in the shard."""

    def lines(self, part: str) -> Iterator[str]:
        """Return the entries of a part as text; for the pool, its digest."""
        if part not in NAMED:
            return iter([self.unlabeled])
        return (entry.tobytes().hex() for entry in getattr(self, part))


def content_of(table: ImageTable, split: Split) -> Content:
    """Return the content of a split's images.

    For files it is what the cache has read, which is what a run trains on; files that are not
    cached are read.
    """
    named = {part: np.concatenate([*_entries(table, getattr(split, part))]) for part in NAMED}
    streamed = _is_streamed(table)
    pool = hashlib.sha256()
    for entries in _entries(table, split.unlabeled, read=not streamed):
        pool.update(entries.tobytes())
    return Content(**named, unlabeled=f"{_INDEX if streamed else ''}{pool.hexdigest()}")


def table_hash(table: ImageTable, rows: Rows) -> str:
    """Return the SHA-256 over keys, splits, content and labels of images that may be in no split.

    As of a streamed pool, their place is covered instead of their content where they are streamed.

    Args:
        table: The images.
        rows: Some of them.
    """
    digest = hashlib.sha256()
    for entries in _entries(table, rows, read=not _is_streamed(table)):
        digest.update(entries.tobytes())
    for row in rows.tolist():
        digest.update(f"{table.keys[row]}\0{table.splits[row]}\0".encode(errors="surrogatepass"))
    return digest.hexdigest()


def parsed_entries(lines: Sequence[str]) -> Entries:
    """Parse the entries of `Content.lines`.

    Raises:
        ValueError: A line is not an entry.
    """
    content = b"".join(bytes.fromhex(line) for line in lines)
    return np.frombuffer(content, np.uint8).reshape(len(lines), ENTRY_BYTES)


_CHANGES = ("differ", "have another label", "are gone", "are new")


@dataclass
class Changes:
    """Numbers of images that changed, with a `description` in one sentence."""

    counts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Number and part of the images, by kind of change."""

    def compare(self, part: str, previous: Entries, current: Entries) -> None:
        """Add the differences between entries of the same images, in the same order."""
        other = (previous[:, :_CONTENT_BYTES] != current[:, :_CONTENT_BYTES]).any(axis=1)
        label = (previous[:, _CONTENT_BYTES:] != current[:, _CONTENT_BYTES:]).any(axis=1) & ~other
        for change, mask in (("differ", other), ("have another label", label)):
            if count := int(mask.sum()):
                self.counts[change].append(f"{count:,} of {len(previous):,} {part}")

    def compare_pool(self, previous: str, current: str, count: int) -> None:
        """Add a change if the digests of a pool of the same images differ.

        The digest of a streamed pool can't be compared with that of a pool that was read.
        """
        if previous != current and previous.startswith(_INDEX) == current.startswith(_INDEX):
            self.counts["differ"].append(f"some of the {count:,} unlabeled")

    def count(self, part: str, gone: int, new: int, count: int) -> None:
        """Add the numbers of images removed from a part of `count` images, and added to it."""
        if gone:
            self.counts["are gone"].append(f"{gone:,} of {count:,} {part}")
        if new:
            self.counts["are new"].append(f"{new:,} {part}")

    @property
    def description(self) -> str:
        """One sentence without a full stop; empty for no change."""
        sentences = []
        for change in _CHANGES:
            if parts := self.counts[change]:
                *first, last = parts
                listed = f"{', '.join(first)} and {last}" if first else last
                sentences.append(f"{listed} images {change}")
        return ", ".join(sentences)


def compare_contents(previous: Content, current: Content, unlabeled: int) -> Changes:
    """Compare the previous and the current content of a split."""
    changes = Changes()
    for part in NAMED:
        changes.compare(part, getattr(previous, part), getattr(current, part))
    changes.compare_pool(previous.unlabeled, current.unlabeled, unlabeled)
    return changes


def compare_rows(previous: Split, current: Split) -> Changes:
    """Count the images added to and removed from the parts of a split of the same table."""
    changes = Changes()
    for part in (*NAMED, "unlabeled"):
        rows, others = getattr(previous, part), getattr(current, part)
        gone, new = len(np.setdiff1d(rows, others)), len(np.setdiff1d(others, rows))
        changes.count(part, gone, new, len(rows))
    return changes


def _is_streamed(table: ImageTable) -> bool:
    files = files_of(table)
    return files is not None and not files.all_cached


def _entries(table: ImageTable, rows: Rows, *, read: bool = True) -> Iterator[Entries]:
    yield np.empty((0, ENTRY_BYTES), np.uint8)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        content = _digests(table, block, read=read)
        yield np.concatenate([content[:, :_CONTENT_BYTES], _labels(table, block)], axis=1)


def _labels(table: ImageTable, rows: Rows) -> NDArray[np.uint8]:
    """Return (n, 4): the class as a big-endian int32, or a digest of the set of classes.

    The number of a set depends on the other sets of the table, so that it can stay the same where
    the set changes. -1 for an image without a label.
    """
    labels = table.labels[rows].astype(">i4").view(np.uint8).reshape(-1, 4)
    if table.label_sets is not None:
        for number in np.unique(table.labels[rows]).tolist():
            if number >= 0:
                names = json.dumps(sorted(compress(table.classes, table.label_sets[number])))
                digest = hashlib.sha256(names.encode()).digest()
                labels[table.labels[rows] == number] = np.frombuffer(digest[:4], np.uint8)
    return labels


def _digests(table: ImageTable, rows: Rows, *, read: bool) -> NDArray[np.uint8]:
    if (files := files_of(table)) is not None:
        return files.digests(rows) if read else files.positions(rows).astype("<i8").view(np.uint8)
    if table.digest is None:
        pixels = table.read(rows, _UNKNOWN_SIZE)
        digests = [hashlib.sha256(image.tobytes()).digest() for image in pixels]
    else:  # any string
        digests = [hashlib.sha256(table.digest(row).encode()).digest() for row in rows.tolist()]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(rows), -1)
