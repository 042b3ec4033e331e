"""The image files of a table, by row, and the caches of their decoded pixels."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.build import known_cache, open_cache
from ssl_toolkit.data.cache.format import ImageCache, Progress
from ssl_toolkit.data.images.archives import container, tar_member
from ssl_toolkit.data.images.decoding import Unreadable
from ssl_toolkit.data.images.files import open_content, opened_image, pillow_muted, read_images
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path


class RelativePaths(Sequence[str]):
    """Sequence of file paths, stored relative to a common folder.

    A million paths take no memory of their own where the names are the keys of the table.

    Args:
        names: paths; relative ones are below `base`.
        base: a folder; empty for the current one.
    """

    def __init__(self, names: Sequence[str], base: str = "") -> None:
        self._names = names
        self._base = base

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return (os.path.join(self._base, name) for name in self._names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [os.path.join(self._base, name) for name in self._names[index]]
        return os.path.join(self._base, self._names[index])


class ImageFiles(Sequence[str]):
    """Paths of the images of a table; everything here is by row of the table.

    Args:
        paths: the files; those of images that were dropped stay in the caches.
        workers: threads that decode; 0 decodes in the calling one.
        fit: see `fit_image`.
    """

    def __init__(self, paths: Sequence[str], workers: int = 0, fit: Fit = "crop") -> None:
        self.workers = workers
        self.fit: Fit = fit
        self.warning = ""
        """Why decoded images could not be kept on disk."""
        self.dropped: tuple[tuple[str, str], ...] = ()
        """Path and reason of each image that was dropped as unreadable."""
        self._paths = paths
        self._index: NDArray[np.int64] | None = None  # of each row in `_paths`; None: the same
        self._cached: NDArray[np.int64] | None = None  # ascending, in `_paths`; None: all
        self._caches: dict[tuple[int, Fit], ImageCache] = {}

    def __len__(self) -> int:
        return len(self._paths if self._index is None else self._index)

    def __iter__(self) -> Iterator[str]:
        if self._index is None:
            return iter(self._paths)
        return (self._paths[index] for index in self._index.tolist())

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        return self._paths[row if self._index is None else int(self._index[row])]

    @property
    def in_parquet(self) -> bool:
        """True if they are in parquet files, which are not read image by image."""
        first = self[0] if len(self) else ""
        return container(first) is not None and tar_member(first) is None

    @property
    def all_cached(self) -> bool:
        """True if the caches hold all images, False after `cache_only`."""
        return self._cached is None

    def read(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """See `ImageTable.read`: from the cache where that size was opened, else from the files.

        Raises:
            DataError: some can't be read; one message a file.
        """
        cache = self._caches.get((size, self.fit))
        if cache is None or not cache.has(rows).all():
            return read_images(
                [Path(self[row]) for row in rows.tolist()], size, self.workers, self.fit
            )
        return np.ascontiguousarray(cache.take(rows).transpose(0, 2, 3, 1))

    def sides(self, most: int) -> list[int]:
        """Sides in pixels of at most so many images, evenly chosen; opens their headers.

        Those that are scaled to the image size: the shorter ones, of padded images the longer ones.
        """
        side = max if self.fit == "pad" else min
        found = []
        with pillow_muted():
            for row in range(0, len(self), max(1, len(self) // most)):
                with contextlib.suppress(Unreadable), opened_image(Path(self[row])) as image:
                    found.append(side(image.size))
        return found

    def open(self, size: int, progress: Progress | None = None) -> ImageCache:
        """Return the decoded images, by row; decode them if there is no cache (`open_cache`)."""
        key = size, self.fit
        if key not in self._caches:
            cache, self.warning = open_cache(
                self._cached_paths(), size, workers=self.workers, progress=progress, fit=self.fit
            )
            self._caches[key] = self._by_row(cache)
        return self._caches[key]

    def open_known(self, size: int) -> None:
        """Use the cache of this size if there is one; decodes no image."""
        key = size, self.fit
        if key not in self._caches and (cache := known_cache(self._cached_paths(), *key)):
            self._caches[key] = self._by_row(cache)

    def cache_only(self, rows: NDArray[np.int64]) -> None:
        """Let the caches hold the images of these rows alone."""
        rows = np.unique(rows)
        self._cached = rows if self._index is None else np.sort(self._index[rows])
        self._caches.clear()

    def drop(self, faults: Mapping[int, str]) -> Self:
        """Return the files without those of some rows; `faults` has the reasons.

        The caches are keyed by the files that were listed first, so that the next start, which
        lists them all again, finds them.
        """
        rows = np.delete(np.arange(len(self)), sorted(faults))
        files = copy.copy(self)
        files.dropped += tuple((self[row], faults[row]) for row in sorted(faults))
        files._index = rows if self._index is None else self._index[rows]
        files._caches = {key: cache.select(rows) for key, cache in self._caches.items()}
        return files

    def digest(self, row: int) -> str:
        """SHA-256, in hexadecimal, of the bytes of a row's file."""
        rows = np.array([row])
        for cache in self._caches.values():
            if cache.has(rows)[0]:
                return cache.digests_of(rows).tobytes().hex()
        with open_content(Path(self[row])) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def digests(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """SHA-256 of each row's file, (n, 32): as a cache knows it, else of the file as it is now.

        Zeros where the file can't be read.
        """
        found = np.zeros((len(rows), 32), np.uint8)
        known = np.zeros(len(rows), dtype=bool)
        for cache in [*self._caches.values()][:1]:
            known = cache.has(rows)
            found[known] = cache.digests_of(rows[known])
        for i in np.flatnonzero(~known).tolist():
            with contextlib.suppress(OSError):
                found[i] = np.frombuffer(bytes.fromhex(self.digest(int(rows[i]))), np.uint8)
        return found

    def short_digests(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Eight bytes of each digest, (n,), where a cache knows them all; else None."""
        for cache in self._caches.values():
            if not cache.holds(rows).all():
                return None
            found: NDArray[np.int64] = cache.digests_of(rows, np.int64)[:, 0]
            return found
        return None

    def positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Offset and length of each row's image in its shard, (n, 2); opens no file.

        An image that is a file of its own has offset 0; one that is gone, length -1.
        """
        found = np.zeros((len(rows), 2), np.int64)
        for i, row in enumerate(rows.tolist()):
            path = self[row]
            if member := tar_member(path):
                found[i] = member[1:]
                continue
            try:
                found[i, 1] = os.stat(path).st_size
            except OSError:
                found[i, 1] = -1
        return found

    def _cached_paths(self) -> Sequence[str]:
        if self._cached is None:
            return self._paths
        return PackedStrings(self._paths[index] for index in self._cached.tolist())

    def _by_row(self, cache: ImageCache) -> ImageCache:
        """The cache of `_cached_paths` by row of the table."""
        if self._cached is None:
            return cache if self._index is None else cache.select(self._index)
        index = np.arange(len(self)) if self._index is None else self._index
        found = np.full(len(self._paths), -1, dtype=np.int64)
        found[self._cached] = np.arange(len(self._cached))
        return cache.select(found[index])


def files_of(table: ImageTable) -> ImageFiles | None:
    """The files of a table with the caches that were opened for them; None if it has no files."""
    files = table.files
    return files if files is None or isinstance(files, ImageFiles) else ImageFiles(files)


def open_files(table: ImageTable, workers: int = 0, fit: Fit = "crop") -> ImageTable:
    """Return a table of files that reads and hashes them; one without files as it is.

    Args:
        table: with `ImageTable.files`.
        workers: threads that decode; 0 decodes in the calling one.
        fit: see `fit_image`.
    """
    files = files_of(table)
    if files is None:
        return table
    files = copy.copy(files)
    files.workers, files.fit = workers, fit
    return with_files(table, files)


def with_files(table: ImageTable, files: ImageFiles) -> ImageTable:
    """Return the table with these files, which it reads and hashes."""
    return replace(table, files=files, read=files.read, digest=files.digest)


def verify(
    table: ImageTable,
    size: int,
    *,
    refuse: bool,
    progress: Progress | None = None,
) -> ImageTable:
    """Decode the images of a table that are files into the cache, or know them from it.

    Args:
        table: one whose images are not files is returned as it is.
        size: side in pixels.
        refuse: whether unreadable ones are an error; else they are left out.
        progress: called while they are decoded.

    Returns:
        The table without unreadable images; notes name them.

    Raises:
        DataError: `refuse`, and some can't be read; one message each.
    """
    files = files_of(table)
    if files is None:
        return table
    faults = files.open(size, progress).faults
    if not faults:
        return table
    if refuse:
        raise unreadable(files, faults)
    notes = skipped(table.keys, faults)
    good = np.delete(np.arange(len(table.keys)), sorted(faults))
    return replace(
        with_files(table, files.drop(faults)),
        keys=PackedStrings(table.keys[row] for row in good.tolist()),
        labels=table.labels[good],
        parts=table.parts[good],
        notes=(*table.notes, *notes),
    )


def unreadable(paths: Sequence[str], faults: Mapping[int, str]) -> DataError:
    """The error that names all of them; `faults` by place in `paths`."""
    messages = [
        f"can't read image {display_path(Path(paths[place]))}: {faults[place]}"
        for place in sorted(faults)
    ]
    way_out = f"replace or remove the unreadable images ({len(faults)})"
    return DataError([*messages, f"{way_out}, or leave them out: --on-bad-image skip"])


def skipped(keys: Sequence[str], faults: Mapping[int, str]) -> list[str]:
    """The notes on those that are left out; `faults` by place in `keys`."""
    notes = [f"skipped {keys[place]}: {faults[place]}" for place in sorted(faults)]
    return [*notes, f"unreadable images skipped: {len(faults)} of {len(keys)}"]
