"""The image files of a table, by row, and the caches of their decoded pixels."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.images import RGB8, Fit, PixelFormat, Size
from ssl_toolkit.data.cache import DecodedImages, Progress, find_cache, open_cache
from ssl_toolkit.data.images.archives import container, tar_member
from ssl_toolkit.data.images.decoding import Unreadable
from ssl_toolkit.data.images.files import open_content, opened_image, pillow_muted, read_images
from ssl_toolkit.data.images.kinds import kind_of_name
from ssl_toolkit.data.images.levels import Levels
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, SplitName
from ssl_toolkit.text import display_path, summarize

_MAPPED_BYTES = 64 * 2**20  # of the mapped pixels that may be in memory
_PAGE_BYTES = 2**16  # that the system maps around a page which is read


class ImageFiles(Sequence[str]):
    """Paths and decoded images of a table; all of it by row of the table.

    The decoded images are in caches, one per size, which hold the images that were listed first:
    images that are dropped as unreadable stay in them, so that the next start, which lists all
    images again, finds the same caches.

    Args:
        names: Paths to the images; relative ones are below `base`. A million paths take no memory
            of their own if these are the keys of the table.
        base: Path to a folder; empty for the current one.
        workers: Threads that decode; 0 decodes in the calling one.
        fit: See `fit_image`.
        pixels: Channels and bits.
    """

    def __init__(
        self,
        names: Sequence[str],
        base: str = "",
        workers: int = 0,
        fit: Fit = "crop",
        pixels: PixelFormat = RGB8,
    ) -> None:
        self.workers = workers
        self.fit: Fit = fit
        self.pixels = pixels
        self.warning: str = ""
        """Why decoded images could not be written to disk."""
        self.dropped: tuple[tuple[str, str], ...] = ()
        """Path and reason of each image that was dropped as unreadable."""
        self.all_cached: bool = True
        """True if the caches hold all images, False after `cache_only`."""
        self._names = names
        self._base = base
        self._cached_names = names
        self._index: NDArray[np.int64] | None = None  # row of the caches, -1: none; None: the same
        self._caches: dict[Size, DecodedImages] = {}  # by size
        self._bytes_read = 0

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return (os.path.join(self._base, name) for name in self._names)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [os.path.join(self._base, name) for name in self._names[row]]
        return os.path.join(self._base, self._names[row])

    @property
    def in_parquet(self) -> bool:
        """True if they are in parquet files, which are not read image by image."""
        first = self[0] if len(self) else ""
        return container(first) is not None and tar_member(first) is None

    def sides(self, most: int) -> list[int]:
        """Return the sides in pixels of at most `most` images, evenly chosen; open their headers.

        Those that are scaled to the image size: the shorter ones, of padded images the longer ones.
        """
        side = max if self.fit == "pad" else min
        sides = []
        with pillow_muted():
            for row in range(0, len(self), max(1, len(self) // most)):
                with contextlib.suppress(Unreadable), opened_image(Path(self[row])) as opened:
                    sides.append(side(opened[0].size))
        return sides

    def open(self, size: Size, progress: Progress | None = None) -> dict[int, str]:
        """Decode the images at a size if there is no cache of it yet (`open_cache`).

        Returns:
            Reason why an image can't be read, by row.
        """
        if size not in self._caches:
            self._caches[size], self.warning = open_cache(
                self._cached_paths(),
                size,
                workers=self.workers,
                progress=progress,
                fit=self.fit,
                pixels=self.pixels,
            )
        faults = self._caches[size].faults
        index = self._cached_rows(np.arange(len(self) if faults else 0))
        bad = np.flatnonzero(np.isin(index, [*faults]))
        return {row: faults[int(index[row])] for row in bad.tolist()}

    def open_existing(self, size: Size) -> None:
        """Use the cache of this size if there is one; decode no image."""
        if size not in self._caches:
            cache = find_cache(self._cached_paths(), size, self.fit, self.pixels)
            if cache is not None:
                self._caches[size] = cache

    def cache_only(self, rows: NDArray[np.int64]) -> None:
        """Restrict the caches to the images of these rows."""
        rows = np.unique(rows)
        self.all_cached = False
        self._index = np.full(len(self), -1, dtype=np.int64)
        self._index[rows] = np.arange(len(rows))
        self._cached_names = PackedStrings(self._names[row] for row in rows.tolist())
        self._caches = {}

    def drop(self, faults: Mapping[int, str]) -> Self:
        """Return the files without those of some rows; `faults` has the reasons."""
        rows = np.delete(np.arange(len(self)), sorted(faults))
        files = copy.copy(self)
        files.dropped += tuple((self[row], faults[row]) for row in sorted(faults))
        files._names = PackedStrings(self._names[row] for row in rows.tolist())
        files._index = self._cached_rows(rows)
        return files

    def with_form(self, workers: int, fit: Fit, pixels: PixelFormat) -> Self:
        """Return the files, to be decoded by some workers and in this form."""
        files = copy.copy(self)
        files._caches = self._caches if (fit, pixels) == (self.fit, self.pixels) else {}
        files.workers, files.fit, files.pixels = workers, fit, pixels
        return files

    def in_memory(self, size: Size) -> bool:
        """Return True if a cache is in memory because it could not be written to disk."""
        return not self._caches[size].maps

    def has(self, rows: NDArray[np.int64], size: Size) -> bool:
        """Return True if the images of all these rows are decoded at a size."""
        return size in self._caches and bool(self._is_readable(rows, self._caches[size]).all())

    def take(self, rows: NDArray[np.int64], size: Size) -> Levels:
        """Copy decoded images of these rows: (n, C, H, W); see `has`."""
        cache = self._caches[size]
        images: Levels = cache.pixels.take(self._cached_rows(rows), axis=0)
        self._bytes_read += images.nbytes + _PAGE_BYTES * len(rows)
        if self._bytes_read > _MAPPED_BYTES:
            self._release(cache)
        return images

    def read(self, rows: NDArray[np.int64], size: Size) -> Levels:
        """See `ImageTable.read`: from the cache if that size was opened, else from the files.

        Raises:
            DataError: Some can't be read; one message per file.
        """
        if self.has(rows, size):
            return np.ascontiguousarray(self.take(rows, size).transpose(0, 2, 3, 1))
        paths = [Path(self[row]) for row in rows.tolist()]
        return read_images(paths, size, self.workers, self.fit, self.pixels)

    def moments(self, rows: NDArray[np.int64], size: Size) -> NDArray[np.object_]:
        """Sum the gray levels of each channel over decoded images, and their squares: (2, C)."""
        # Integers of Python: squares of 16 bits exceed 64 bits after 4 billion white pixels.
        cache, index = self._caches[size], self._cached_rows(rows)
        sums = np.zeros((2, self.pixels.channels), dtype=object)
        for start in range(0, len(index), 2**10):
            sums += cache.moments[index[start : start + 2**10]].sum(axis=0).astype(object)
            self._release(cache)
        return sums

    def modes(self, size: Size) -> frozenset[str]:
        """Return Pillow's names of the modes of decoded images."""
        cache = self._caches[size]
        modes = np.unique(cache.modes[self._cached_rows(np.arange(len(self)))]).tolist()
        self._release(cache)
        return frozenset(mode.decode() for mode in modes)

    def shapes_and_modes(self, size: Size) -> tuple[NDArray[np.int32], list[str]]:
        """Return (n, 2) width and height of the upright images, and Pillow's names of the modes."""
        cache, index = self._caches[size], self._cached_rows(np.arange(len(self)))
        return cache.shapes[index], [mode.decode() for mode in cache.modes[index].tolist()]

    def digest(self, row: int) -> str:
        """Return the SHA-256 of the bytes of a row's file, in hexadecimal."""
        rows = np.array([row])
        for cache in self._caches.values():
            if self._is_readable(rows, cache)[0]:
                return self._cached_digests(rows, cache).tobytes().hex()
        with open_content(Path(self[row])) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def digests(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return (n, 32) SHA-256 of the files, from a cache if it has them; zeros if unreadable."""
        digests = np.zeros((len(rows), 32), np.uint8)
        cached = np.zeros(len(rows), dtype=bool)
        for cache in [*self._caches.values()][:1]:
            cached = self._is_readable(rows, cache)
            digests[cached] = self._cached_digests(rows[cached], cache)
        for i in np.flatnonzero(~cached).tolist():
            with contextlib.suppress(OSError):
                digests[i] = np.frombuffer(bytes.fromhex(self.digest(int(rows[i]))), np.uint8)
        return digests

    def positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return offset and length of each row's image in its shard, (n, 2); open no file.

        An image that is a file of its own has offset 0; a missing one, length -1.
        """
        positions = np.zeros((len(rows), 2), np.int64)
        for i, row in enumerate(rows.tolist()):
            path = self[row]
            if member := tar_member(path):
                positions[i] = member[1:]
                continue
            try:
                positions[i, 1] = os.stat(path).st_size
            except OSError:
                positions[i, 1] = -1
        return positions

    def _cached_paths(self) -> Sequence[str]:
        return ImageFiles(self._cached_names, self._base)

    def _cached_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows if self._index is None else self._index[rows]

    def _is_readable(self, rows: NDArray[np.int64], cache: DecodedImages) -> NDArray[np.bool_]:
        index = self._cached_rows(rows)
        readable = index >= 0
        return readable & ~np.isin(index, [*cache.faults]) if cache.faults else readable

    def _cached_digests(self, rows: NDArray[np.int64], cache: DecodedImages) -> NDArray[np.uint8]:
        digests = cache.digests[self._cached_rows(rows)]
        self._release(cache)
        return digests

    def _release(self, cache: DecodedImages) -> None:
        """Unmap the pages that were read.

        They would count as this process's memory, and grow with every image; the system still
        caches them while memory is available.
        """
        self._bytes_read = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in cache.maps:
                mapped.madvise(mmap.MADV_DONTNEED)


def files_of(table: ImageTable) -> ImageFiles | None:
    """Return the files of a table with their opened caches; None if it has no files."""
    files = table.files
    return files if files is None or isinstance(files, ImageFiles) else ImageFiles(files)


def open_files(
    table: ImageTable, workers: int = 0, fit: Fit = "crop", pixels: PixelFormat = RGB8
) -> ImageTable:
    """Return a table of files that reads and hashes them; one without files as it is.

    Args:
        table: Images with `ImageTable.files`.
        workers: Threads that decode; 0 decodes in the calling one.
        fit: See `fit_image`.
        pixels: Channels and bits.
    """
    files = files_of(table)
    return table if files is None else with_files(table, files.with_form(workers, fit, pixels))


def with_files(table: ImageTable, files: ImageFiles) -> ImageTable:
    """Return the table with these files, which it reads and hashes."""
    return replace(table, files=files, read=files.read, digest=files.digest, pixels=files.pixels)


def unreadable(files: Sequence[str], faults: Mapping[int, str]) -> DataError:
    """Return the error that names all unreadable images; `faults` by index of `files`."""
    messages = [
        f"can't read image {display_path(Path(files[row]))}: {faults[row]}"
        for row in sorted(faults)
    ]
    way_out = f"replace or remove the unreadable images ({len(faults)})"
    return DataError([*messages, f"{way_out}, or leave them out: --on-bad-image skip"])


def skipped(keys: Sequence[str], faults: Mapping[int, str]) -> list[str]:
    """Return the notes on images that are left out; `faults` by index of `keys`."""
    notes = [f"skipped {keys[row]}: {faults[row]}" for row in sorted(faults)]
    return [*notes, f"unreadable images skipped: {len(faults)} of {len(keys)}"]


@dataclass
class FileTree:
    """Files below a folder; keys are relative to the data folder, with ``/``, as UTF-8 text."""

    images: dict[str, Path] = field(default_factory=dict)
    """By key, in the order of the keys; broken links among them."""
    unused: list[str] = field(default_factory=list)
    """Files whose extension isn't an image's."""
    links: list[str] = field(default_factory=list)
    """Links that were not followed because they lead into another split or in a circle."""


@dataclass
class TableBuilder:
    """Rows of a table of image files, and notes on the files that are not used."""

    keys: PackedStrings = field(default_factory=PackedStrings)
    paths: PackedStrings = field(default_factory=PackedStrings)
    """May be the keys themselves."""
    base: str = ""
    """Folder of the relative `paths`; empty for the current one."""
    labels: list[int] = field(default_factory=list)
    splits: list[SplitName] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, tree: FileTree, label: int, split: SplitName) -> None:
        """Add the images of a file tree, all with one label (-1 for none) and split."""
        self.keys.extend(tree.images)
        self.paths.extend(map(str, tree.images.values()))
        self.labels += [label] * len(tree.images)
        self.splits += [split] * len(tree.images)
        self.unused += tree.unused
        self.links += tree.links

    def table(self, classes: tuple[str, ...]) -> ImageTable:
        """Return the table; no file is opened."""
        notes = [f"ignored folders: {summarize(self.ignored)}"] if self.ignored else []
        notes += unused_notes(self.unused, "no image's extension, or outside the class folders")
        if self.links:
            notes.append(
                "links not followed (they lead into another split, or in a circle): "
                f"{summarize(self.links)}"
            )
        table = ImageTable(
            classes=classes,
            keys=self.keys,
            labels=np.array(self.labels, dtype=np.int64),
            splits=np.array(self.splits, dtype=np.str_),
            notes=(*notes, *self.notes),
        )
        return with_files(table, ImageFiles(self.paths, self.base))


def unused_notes(names: Iterable[str], why: str) -> list[str]:
    """Return notes on files that aren't used, first those of image formats that aren't supported.

    Args:
        names: The files.
        why: What is said of the others.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of_name(name), []).append(name)
    others = kinds.pop("", [])
    notes = [
        f"files not used, {len(files)}, each {kind}, which isn't read; convert them to JPEG or "
        f"PNG: {summarize(files)}"
        for kind, files in kinds.items()
    ]
    if others:
        notes.append(f"files not used, {len(others)} ({why}): {summarize(others)}")
    return notes
