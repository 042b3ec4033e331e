"""Pictures that are files, behind `ImageTable.read` and `ImageTable.digest`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.cache import open_cache
from ssl_toolkit.data.cache_files import PictureCache, Progress
from ssl_toolkit.data.pictures import open_content, read_pictures


class FileNames(Sequence[str]):
    """Paths of files, of which only what is below one folder is kept.

    A million paths take no memory of their own where the names are the keys of the table.

    Args:
        names: paths; relative ones are below `base`.
        base: a folder; empty for the current one.
    """

    def __init__(self, names: Iterable[str | Path], base: str = "") -> None:
        self._names = [name if isinstance(name, str) else str(name) for name in names]
        self._base = base

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return (os.path.join(self._base, name) for name in self._names)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [os.path.join(self._base, name) for name in self._names[place]]
        return os.path.join(self._base, self._names[place])


class FilePictures:
    """The ``read`` of a table whose pictures are files.

    Args:
        paths: where the pictures are, those without a row of the table among them.
        workers: threads that decode; 0 decodes in the calling one.
    """

    def __init__(self, paths: FileNames, workers: int = 0) -> None:
        self.paths = paths
        self.workers = workers
        self.places = np.arange(len(paths), dtype=np.int64)
        """(N,) where the picture of each row of the table is in `paths`."""
        self.warning = ""
        """Why decoded pictures could not be kept on disk."""
        self._caches: dict[int, PictureCache] = {}

    def __call__(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """See `ImageTable.read`: from the cache where that size was opened, else from the files.

        Raises:
            DataError: some can't be read; one message a file.
        """
        places = self.places[rows]
        cache = self._caches.get(size)
        if cache is None or cache.has_faults(places):
            paths = [Path(self.paths[place]) for place in places.tolist()]
            return read_pictures(paths, size, self.workers)
        return np.ascontiguousarray(cache.take(places).transpose(0, 2, 3, 1))

    def open(self, size: int, progress: Progress | None = None) -> PictureCache:
        """The decoded pictures of all `paths`, made when there are none; see `open_cache`."""
        if size not in self._caches:
            self._caches[size], self.warning = open_cache(
                self.paths, size, workers=self.workers, progress=progress
            )
        return self._caches[size]

    def digest(self, row: int) -> str:
        """SHA-256, in hexadecimal, of the bytes of a row's file."""
        place = self.places[row]
        for cache in self._caches.values():
            if place not in cache.faults:
                return bytes(cache.digests[place]).hex()
        with open_content(Path(self.paths[place])) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def short_digests(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Eight bytes of each digest, (n,), where a cache knows them; else None."""
        for cache in self._caches.values():
            found: NDArray[np.int64] = cache.digests.view(np.int64)[self.places[rows], 0]
            cache.give_back()
            return found
        return None
