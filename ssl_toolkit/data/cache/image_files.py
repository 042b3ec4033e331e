"""Images that are files, behind `ImageTable.read` and `ImageTable.digest`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.build import known_cache, open_cache
from ssl_toolkit.data.cache.format import ImageCache, Progress
from ssl_toolkit.data.images.archives import container, tar_member
from ssl_toolkit.data.images.decoding import Unreadable
from ssl_toolkit.data.images.files import open_content, opened_image, pillow_muted, read_images
from ssl_toolkit.data.packed_strings import Texts


class FileNames(Sequence[str]):
    """Paths of files, of which only what is below one folder is kept.

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
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [os.path.join(self._base, name) for name in self._names[place]]
        return os.path.join(self._base, self._names[place])


class ImageFiles:
    """The ``read`` of a table whose images are files.

    Args:
        paths: where the images are, those without a row of the table among them.
        workers: threads that decode; 0 decodes in the calling one.
        fit: see `fit_image`.
    """

    def __init__(self, paths: FileNames, workers: int = 0, fit: Fit = "crop") -> None:
        self.paths = paths
        self.workers = workers
        self.fit: Fit = fit
        self.places = np.arange(len(paths), dtype=np.int64)
        """(N,) where the image of each row of the table is in `paths`."""
        self.kept: NDArray[np.int64] | None = None
        """Places in `paths` of the images that the caches hold, ascending; None for all."""
        self.warning = ""
        """Why decoded images could not be kept on disk."""
        self._caches: dict[tuple[int, Fit], ImageCache] = {}

    @property
    def in_parquet(self) -> bool:
        """Whether they are in parquet files, which are not read image by image."""
        first = self.paths[0] if len(self.paths) else ""
        return container(first) is not None and tar_member(first) is None

    def __call__(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """See `ImageTable.read`: from the cache where that size was opened, else from the files.

        Raises:
            DataError: some can't be read; one message a file.
        """
        cache = self._caches.get((size, self.fit))
        inside = self.in_cache(rows)
        if cache is None or (inside < 0).any() or cache.has_faults(inside):
            paths = [Path(self.paths[place]) for place in self.places[rows].tolist()]
            return read_images(paths, size, self.workers, self.fit)
        return np.ascontiguousarray(cache.take(inside).transpose(0, 2, 3, 1))

    def sides(self, most: int) -> list[int]:
        """Sides in pixels of at most so many images, evenly chosen; opens their headers.

        Those that are scaled to the image size: the shorter ones, of padded images the longer ones.
        """
        side = max if self.fit == "pad" else min
        found = []
        with pillow_muted():
            for place in self.places[:: max(1, len(self.places) // most)].tolist():
                with contextlib.suppress(Unreadable), opened_image(Path(self.paths[place])) as it:
                    found.append(side(it.size))
        return found

    def open(self, size: int, progress: Progress | None = None) -> ImageCache:
        """The decoded images of `kept`, made when there are none; see `open_cache`."""
        key = size, self.fit
        if key not in self._caches:
            self._caches[key], self.warning = open_cache(
                self._kept_paths(), size, workers=self.workers, progress=progress, fit=self.fit
            )
        return self._caches[key]

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Let the caches hold the images of these rows of the table alone."""
        self.kept = np.sort(self.places[np.unique(rows)])

    def open_known(self, size: int) -> None:
        """Use the cache of `kept` at this size where there is one; decodes no image."""
        key = size, self.fit
        if key not in self._caches and (cache := known_cache(self._kept_paths(), *key)):
            self._caches[key] = cache

    def _kept_paths(self) -> Sequence[str]:
        if self.kept is None:
            return self.paths
        return Texts(self.paths[place] for place in self.kept.tolist())

    def faults(self, size: int, progress: Progress | None = None) -> dict[int, str]:
        """Why images of `kept` can't be read, by their place in `paths`; opens the cache."""
        found = self.open(size, progress).faults
        if self.kept is None:
            return found
        return {int(self.kept[place]): fault for place, fault in found.items()}

    def in_cache(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the images of these rows of the table are in a cache, (n,); -1 for nowhere."""
        places = self.places[rows]
        if self.kept is None:
            return places
        if not len(self.kept):
            return np.full_like(places, -1)
        found = np.searchsorted(self.kept, places).clip(max=len(self.kept) - 1)
        return np.where(self.kept[found] == places, found, -1).astype(np.int64)

    def digest(self, row: int) -> str:
        """SHA-256, in hexadecimal, of the bytes of a row's file."""
        place = int(self.in_cache(np.array([row]))[0])
        for cache in self._caches.values():
            if place >= 0 and place not in cache.faults:
                return bytes(cache.digests[place]).hex()
        with open_content(Path(self.paths[self.places[row]])) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def digests(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """SHA-256 of each row's file, (n, 32): as a cache knows it, else of the file as it is now.

        Zeros where the file can't be read.
        """
        found = np.zeros((len(rows), 32), np.uint8)
        inside = self.in_cache(rows)
        known = np.zeros(len(rows), dtype=bool)
        for cache in [*self._caches.values()][:1]:
            known = (inside >= 0) & ~np.isin(inside, np.array([*cache.faults], dtype=np.int64))
            found[known] = cache.digests[inside[known]]
            cache.give_back()
        for place in np.flatnonzero(~known).tolist():
            with contextlib.suppress(OSError):
                digest = bytes.fromhex(self.digest(int(rows[place])))
                found[place] = np.frombuffer(digest, np.uint8)
        return found

    def places_in_files(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Offset and length of each row's image in its shard, (n, 2); opens no file.

        An image that is a file of its own has offset 0; one that is gone, length -1.
        """
        found = np.zeros((len(rows), 2), np.int64)
        for at, place in enumerate(self.places[rows].tolist()):
            path = self.paths[place]
            if member := tar_member(path):
                found[at] = member[1:]
                continue
            try:
                found[at, 1] = os.stat(path).st_size
            except OSError:
                found[at, 1] = -1
        return found

    def short_digests(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Eight bytes of each digest, (n,), where a cache knows them all; else None."""
        inside = self.in_cache(rows)
        for cache in self._caches.values():
            if (inside < 0).any():
                return None
            found: NDArray[np.int64] = cache.digests.view(np.int64)[inside, 0]
            cache.give_back()
            return found
        return None
