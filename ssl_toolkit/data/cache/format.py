"""The columns of a cache of decoded images, on disk or in memory.

On disk a cache is a folder with one file a column (see `_columns`) and ``meta.json``, written last,
with a checksum of every block of rows.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import mmap
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.in_use import META, Use
from ssl_toolkit.data.images.decoding import Unreadable, to_upright
from ssl_toolkit.data.images.files import each_image, fit_image, open_content, opened_image
from ssl_toolkit.files import write_json

Progress = Callable[[int, int], None]
"""Called with how many images of how many are read."""

_SMALL_BYTES = 16 * 2**20  # of a file that is read at once
_BLOCK_BYTES = 16 * 2**20  # pixels of one block
_CHECKED_BYTES = 256 * 2**20  # of a column, spread evenly, when a cache is opened
_HELD_BYTES = 64 * 2**20  # of the mapped file, before its pages are given back
_AROUND_BYTES = 2**16  # that the system maps around a page which is looked at


class ImageCache:
    """N images of one size, and what their files are like; rows of unreadable ones are zero.

    The columns are as they are on disk. The methods take rows of a table, see `select`.
    """

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        faults: Mapping[int, str],
        maps: Sequence[mmap.mmap] = (),
        use: Use | None = None,
    ) -> None:
        self.pixels: NDArray[np.uint8] = columns["pixels"]
        """(N, 3, size, size)."""
        self.digests: NDArray[np.uint8] = columns["digests"]
        """(N, 32), SHA-256 of the files."""
        self.moments: NDArray[np.uint64] = columns["moments"]
        """(N, 2, 3): of each channel the sum and the sum of squares of its gray levels."""
        self.shapes: NDArray[np.int32] = columns["shapes"]
        """(N, 2), width and height of the upright images."""
        self.modes: NDArray[np.bytes_] = columns["modes"]
        """(N,), Pillow's names for the pixels of the files."""
        self.faults = dict(faults)
        """Why a row can't be read."""
        self._index: NDArray[np.int64] | None = None  # into the columns, -1 for none; None: as is
        self._maps = maps
        self._use = use  # held: it keeps the files from being removed
        self._held = 0

    @property
    def size(self) -> int:
        """Side in pixels."""
        return int(self.pixels.shape[-1])

    @property
    def in_memory(self) -> bool:
        """True if the pixels are in memory because they could not be written to disk."""
        return not self._maps

    def select(self, rows: NDArray[np.int64]) -> ImageCache:
        """Return the same images by row of a table: row i has the image of ``rows[i]``.

        Args:
            rows: (n,) rows of this cache; -1 where it holds no image.
        """
        chosen = copy.copy(self)
        chosen._index = self._columns_of(rows)
        bad = np.flatnonzero(np.isin(rows, np.array([*self.faults], dtype=np.int64)))
        chosen.faults = {i: self.faults[int(rows[i])] for i in bad.tolist()}
        return chosen

    def holds(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True where the cache has the row, be it readable or not."""
        return self._columns_of(rows) >= 0

    def has(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True where the cache has the image of the row."""
        there = self.holds(rows)
        if self.faults:
            there &= ~np.isin(rows, np.array([*self.faults], dtype=np.int64))
        return there

    def digests_of(self, rows: NDArray[np.int64], kind: type = np.uint8) -> NDArray[Any]:
        """Digests of the files of these rows, (n, 32 bytes), viewed as numbers of a kind."""
        found: NDArray[Any] = self.digests.view(kind)[self._columns_of(rows)]
        self.give_back()
        return found

    def moments_of(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(2, 3) sums and sums of squares of the gray levels of each channel over these rows."""
        index = self._columns_of(rows)
        sums = np.zeros((2, 3), dtype=np.uint64)
        for start in range(0, len(index), 2**16):
            sums += self.moments[index[start : start + 2**16]].sum(axis=0)
            self.give_back()
        return sums

    def facts(self) -> tuple[NDArray[np.int32], list[str]]:
        """(n, 2) width and height of the upright images, and Pillow's names of their modes."""
        index = slice(None) if self._index is None else self._index
        return self.shapes[index], [mode.decode() for mode in self.modes[index].tolist()]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Copies of the images of these rows, (n, 3, size, size)."""
        taken = self.pixels.take(self._columns_of(rows), axis=0)
        self._held += taken.nbytes + _AROUND_BYTES * len(rows)
        if self._held > _HELD_BYTES:
            self.give_back()
        return taken

    def _columns_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._index is None:
            return rows
        return np.where(rows < 0, -1, self._index[rows])

    def give_back(self) -> None:
        """Let go of the pages that were looked at.

        They would count as this process's memory, and grow with every image; the system still
        has them at hand while it has no other use for the memory.
        """
        self._held = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)


def block_length(size: int) -> int:
    """Images of a block: at most 256, and 16 MiB where that is more than one."""
    return max(1, min(256, _BLOCK_BYTES // (3 * size * size)))


def bytes_of(count: int, size: int) -> int:
    """Bytes that a cache of `count` images takes."""
    return count * sum(_width(kind, shape) for kind, shape in _columns(1, size).values())


def hold_cache(
    paths: Sequence[str],
    size: int,
    workers: int,
    progress: Progress | None,
    fit: Fit = "crop",
) -> ImageCache:
    """Decode images into memory; see `write_cache`."""
    columns = {
        name: np.empty(shape, kind) for name, (kind, shape) in _columns(len(paths), size).items()
    }
    faults: dict[int, str] = {}
    start = 0
    for block, found in _blocks(paths, size, workers, progress, fit):
        end = start + len(block["pixels"])
        for name, column in columns.items():
            column[start:end] = block[name]
        faults |= found
        start = end
    return ImageCache(columns, faults)


def write_cache(
    folder: Path,
    paths: Sequence[str],
    size: int,
    workers: int,
    progress: Progress | None,
    fit: Fit = "crop",
) -> None:
    """Decode images into the files of a folder, synced.

    Args:
        folder: an empty folder.
        paths: the images, in the order of the rows.
        size: side in pixels.
        workers: threads that decode.
        progress: called before every block and at the end.
        fit: see `fit_image`.

    Raises:
        OSError: the disk is full or can't be written.
    """
    checksums: dict[str, list[int]] = {name: [] for name in _columns(0, size)}
    faults: dict[int, str] = {}
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in checksums}
        for block, found in _blocks(paths, size, workers, progress, fit):
            for name, column in block.items():
                files[name].write(column.data)
                checksums[name].append(zlib.crc32(column.data))
            faults |= found
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    write_json(folder / META, {"checksums": checksums, "faults": faults})


def read_cache(folder: Path, paths: Sequence[str], size: int) -> ImageCache | None:
    """The cache in a folder; None where there is none, or where it is damaged or stale.

    Lengths and checksums are compared, of a large column those of blocks spread evenly over it.
    Unreadable images are tried again: permissions leave no trace in size and time of a file.
    """
    columns = _columns(len(paths), size)
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        faults = {int(row): str(fault) for row, fault in meta["faults"].items()}
        for name, (kind, shape) in columns.items():
            checksums = meta["checksums"][name]
            _check(folder / name, shape[0], _width(kind, shape), block_length(size), checksums)
        use = Use(folder)
        maps = {name: _map(folder / name) for name in columns}
        bad = [Path(paths[row]) for row in faults]
    except (
        FileNotFoundError, BlockingIOError, ValueError, LookupError, TypeError, AttributeError
    ):  # fmt: skip
        return None
    if not all(isinstance(answer, str) for answer in examine_images(bad, size)):
        return None
    arrays = {
        name: np.frombuffer(maps[name], dtype=kind).reshape(shape)
        for name, (kind, shape) in columns.items()
    }
    return ImageCache(arrays, faults, [*maps.values()], use)


def _columns(count: int, size: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each column of a cache of `count` images."""
    return {
        "pixels": ("|u1", (count, 3, size, size)),
        "digests": ("|u1", (count, 32)),
        "moments": ("<u8", (count, 2, 3)),
        "shapes": ("<i4", (count, 2)),
        "modes": ("|S8", (count,)),
    }


def _blocks(
    paths: Sequence[str], size: int, workers: int, progress: Progress | None, fit: Fit
) -> Iterator[tuple[dict[str, NDArray[Any]], dict[int, str]]]:
    """Decode the images, a block at a time: its columns, and faults by row of the cache.

    The columns of one block are overwritten by the next: fresh memory costs more than to fill it.
    """
    step = block_length(size)
    whole = {name: np.empty(shape, kind) for name, (kind, shape) in _columns(step, size).items()}
    for start in range(0, len(paths), step):
        if progress is not None:
            progress(start, len(paths))
        block = [Path(path) for path in paths[start : start + step]]
        columns = {name: column[: len(block)] for name, column in whole.items()}
        faults = {}
        for place, answer in enumerate(examine_images(block, size, workers, fit)):
            if isinstance(answer, DecodedImage):
                columns["pixels"][place] = answer.pixels.transpose(2, 0, 1)
                columns["digests"][place] = np.frombuffer(answer.digest, np.uint8)
                columns["shapes"][place] = answer.shape
                columns["modes"][place] = answer.mode.encode()
            else:
                faults[start + place] = answer
                for column in columns.values():
                    column[place] = 0 if column.dtype.kind != "S" else b""
        _fill_moments(columns["pixels"], columns["moments"])
        yield columns, faults
    if progress is not None:
        progress(len(paths), len(paths))


def _fill_moments(pixels: NDArray[np.uint8], moments: NDArray[np.uint64]) -> None:
    """Sums and sums of squares of every channel; some images at a time, in the CPU's cache."""
    levels = pixels.reshape(len(pixels), 3, -1)
    step = max(1, 2**15 // levels[0].size)
    for start in range(0, len(levels), step):
        some, place = levels[start : start + step], slice(start, start + step)
        moments[place, 0] = some.sum(axis=-1, dtype=np.uint64)
        moments[place, 1] = np.square(some, dtype=np.uint32).sum(axis=-1, dtype=np.uint64)


def _width(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of one row."""
    return np.dtype(kind).itemsize * math.prod(shape[1:])


def _check(path: Path, count: int, width: int, step: int, checksums: Sequence[int]) -> None:
    """Refuse a column of another length, or with a damaged block among those looked at.

    Raises:
        ValueError: it is damaged.
    """
    if path.stat().st_size != count * width or len(checksums) != -(-count // step):
        raise ValueError(path)
    looked_at = max(1, _CHECKED_BYTES // (step * width))
    with path.open("rb") as file:
        for block in range(0, len(checksums), -(-len(checksums) // looked_at)):
            file.seek(block * step * width)
            if zlib.crc32(file.read(step * width)) != checksums[block]:
                raise ValueError(path)


def _map(path: Path) -> mmap.mmap:
    # Shared and read-only: a private map of a file beyond the memory would be refused.
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@dataclass(frozen=True)
class DecodedImage:
    """An image that could be read, and what its file is like."""

    pixels: NDArray[np.uint8]
    """(size, size, 3), as `read_image`."""
    digest: bytes
    """SHA-256 of the file, 32 bytes."""
    shape: tuple[int, int]
    """Width and height of the upright image."""
    mode: str
    """Pillow's name for the pixels of the file, such as RGB, L or I;16."""


def examine_images(
    paths: Sequence[Path], size: int, workers: int = 0, fit: Fit = "crop"
) -> list[DecodedImage | str]:
    """Read, verify and hash images, each decoded once.

    Args:
        paths: the files.
        size: side in pixels.
        workers: threads that decode; 0 decodes in the calling one.
        fit: see `fit_image`.

    Returns:
        For each what was found, or the reason why it can't be read.
    """

    def examine(path: Path) -> DecodedImage | str:
        try:
            content = _small_content(path)  # read once; faults are reported below
            with opened_image(path if content is None else content) as image:
                mode = image.mode
                upright = to_upright(image)
                if content is None:
                    with open_content(path) as file:
                        digest = hashlib.file_digest(file, "sha256").digest()
                else:
                    digest = hashlib.sha256(content).digest()
                return DecodedImage(fit_image(upright, size, fit), digest, upright.size, mode)
        except Unreadable as error:
            return str(error)

    return each_image(examine, paths, workers)


def _small_content(path: Path) -> bytes | None:
    """The bytes of a regular file that memory has room for, else None."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _SMALL_BYTES:
            return None
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None
