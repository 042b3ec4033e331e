"""Image files decoded once: from then on pixels in memory-mapped files.

A cache is a folder ``images/<key>/`` below ``~/.cache/ssl-toolkit``, or below the folder that the
environment variable SSL_TOOLKIT_CACHE names. The key hashes the format, Pillow's version, the
size, how images get it, channels and bits, and path and `file_stamp` of every image, or of the
archive that contains it: a start looks at each file but opens none. The folder has one file per
column (see `_columns`) and ``meta.json``, written last, with a checksum of every block of rows.

A cache is built in a folder beside its own, synced and renamed, so that an interrupted build leaves
none; a lock lets a second run wait for the first and use its cache. Caches without a start for
`UNUSED_DAYS` are removed when another is built. No lock protects a cache from removal: a run has
its files mapped, and mapped files stay readable; a start that finds some files missing builds the
cache again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import mmap
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL
from filelock import FileLock
from numpy.typing import NDArray

from ssl_toolkit.config.images import RGB8, Fit, PixelFormat, Size, sides, size_text
from ssl_toolkit.data.images.archives import container
from ssl_toolkit.data.images.files import DecodedImage, decode_images
from ssl_toolkit.data.images.levels import Levels
from ssl_toolkit.documents import Document
from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import file_stamp, naming
from ssl_toolkit.text import display_path

VARIABLE = "SSL_TOOLKIT_CACHE"
"""Environment variable with the folder of the caches."""

UNUSED_DAYS = 90
"""Days without a start that uses a cache until it is removed."""

Progress = Callable[[int, int], None]
"""Called with the number of images that were read and the number of all."""

Columns = Mapping[str, tuple[str, tuple[int, ...]]]
"""Data type and shape of each column, by name."""

Block = tuple[int, dict[str, NDArray[Any]], dict[int, str]]
"""First row, columns, and reasons why images of the block can't be read, by row of the cache."""

_META = "meta.json"
_BLOCK_BYTES = 16 * 2**20  # pixels of one block
_CHECKED_BYTES = 256 * 2**20  # of a column, spread evenly, when a cache is opened


class CacheIndex(Document):
    """The schema of ``meta.json``; its format also changes with what is done to an image."""

    FORMAT: ClassVar[int] = 4

    checksums: dict[str, list[int]]
    """CRC-32 of every block of rows, by column."""
    faults: dict[int, str]
    """Reason why an image can't be read, by row."""


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """N images of one size and facts about their files; rows of unreadable ones are zero."""

    pixels: Levels
    """(N, C, H, W)."""
    digests: NDArray[np.uint8]
    """(N, 32), SHA-256 of the files."""
    moments: NDArray[np.uint64]
    """(N, 2, C): of each channel the sum and the sum of squares of its gray levels."""
    shapes: NDArray[np.int32]
    """(N, 2), width and height of the upright images."""
    modes: NDArray[np.bytes_]
    """(N,), Pillow's names for the pixels of the files."""
    faults: Mapping[int, str]
    """Reason why an image can't be read, by row."""
    maps: Sequence[mmap.mmap]
    """The mapped files of the columns; empty for a cache in memory."""


def open_cache(
    paths: Sequence[str],
    size: Size,
    *,
    workers: int = 0,
    progress: Progress | None = None,
    fit: Fit = "crop",
    pixels: PixelFormat = RGB8,
) -> tuple[DecodedImages, str]:
    """Return the cache of these files at this size; build a missing, stale or damaged one.

    Args:
        paths: Paths to the images, in the order of the rows.
        size: Size in pixels.
        workers: Threads that decode; 0 decodes in the calling one.
        progress: Called while a cache is built, for the first time before the first image.
        fit: See `fit_image`.
        pixels: Channels and bits.

    Returns:
        The cache, and a warning: empty, or why the images are only in memory.
    """
    columns = _columns(len(paths), size, pixels)
    blocks = _blocks(paths, size, workers, progress, fit, pixels)
    warning = ""
    if paths:
        try:
            folder = cache_folder("images") / _key(paths, size, fit, pixels)
            folder.parent.mkdir(parents=True, exist_ok=True)
            if (cache := _read(folder, paths, size, pixels)) is not None:
                return cache, ""
            if progress is not None:
                progress(0, len(paths))
            with _locked(folder):
                # Another run may have built it while this one waited.
                cache = _read(folder, paths, size, pixels)
                if cache is None:
                    _build(folder, columns, blocks)
                    cache = _read(folder, paths, size, pixels)
            if cache is None:
                raise OSError(errno.EIO, "what was written can't be read back", str(folder))
            return cache, ""
        except OSError as error:
            where = display_path(Path(os.fsdecode(error.filename or _named_root())))
            warning = (
                f"decoded images can't be cached in {where} ({error.strerror or error}): they stay "
                f"in memory and are decoded again at the next start; {VARIABLE}=DIR names another "
                "folder"
            )
    arrays = {name: np.empty(shape, kind) for name, (kind, shape) in columns.items()}
    faults: dict[int, str] = {}
    # Not `blocks`, of which a failed build has taken some.
    for start, block, new_faults in _blocks(paths, size, workers, progress, fit, pixels):
        for name, column in block.items():
            arrays[name][start : start + len(column)] = column
        faults |= new_faults
    return DecodedImages(**arrays, faults=faults, maps=()), warning


def find_cache(
    paths: Sequence[str], size: Size, fit: Fit = "crop", pixels: PixelFormat = RGB8
) -> DecodedImages | None:
    """Return the cache of these files at this size if there is one; decode and write nothing."""
    with contextlib.suppress(OSError):
        if paths:
            folder = cache_folder("images") / _key(paths, size, fit, pixels)
            return _read(folder, paths, size, pixels)
    return None


def cache_folder(kind: str) -> Path:
    """Return the folder with all caches of a kind.

    Args:
        kind: ``images``, ``shards`` (their indices) or ``features`` (of frozen backbones).

    Raises:
        OSError: None is named and there is no home folder.
    """
    try:
        return Path(_named_root()).expanduser().absolute() / kind
    except RuntimeError as error:
        raise OSError(errno.ENOENT, str(error), _named_root()) from None


def _named_root() -> str:
    return os.environ.get(VARIABLE) or "~/.cache/ssl-toolkit"


def _key(paths: Sequence[str], size: Size, fit: Fit, pixels: PixelFormat) -> str:
    form = "" if pixels == RGB8 else f"{pixels}\0"
    form = f"{CacheIndex.FORMAT}\0{fit}\0{PIL.__version__}\0{size_text(size)}\0{form}"
    content = hashlib.sha256(form.encode())
    here = os.getcwd()
    stamp = lru_cache(maxsize=8)(_stamp)  # an archive contains many images
    for path in paths:
        absolute = path if os.path.isabs(path) else os.path.join(here, path)
        content.update(os.fsencode(absolute) + f"\0{stamp(container(path) or path)}\0".encode())
    return content.hexdigest()[:32]


def _stamp(path: str) -> str:
    try:
        return file_stamp(path)
    except OSError:
        return "gone"


def _build(folder: Path, columns: Columns, blocks: Iterable[Block]) -> None:
    """Write decoded images into a folder, all of it or none.

    Raises:
        OSError: The disk is full or not writable.
    """
    needed = sum(np.dtype(kind).itemsize * math.prod(shape) for kind, shape in columns.values())
    if shutil.disk_usage(folder.parent).free < needed:
        reason = f"no space: {needed / 2**20:,.1f} MiB are needed"
        raise OSError(errno.ENOSPC, reason, str(folder.parent))
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".partial"))
    try:
        with naming(folder.parent, beside), contextlib.ExitStack() as stack:
            new = beside / "new"
            new.mkdir()
            files = {name: stack.enter_context((new / name).open("wb")) for name in columns}
            checksums: dict[str, list[int]] = {name: [] for name in columns}
            faults: dict[int, str] = {}
            for _, block, new_faults in blocks:
                for name, column in block.items():
                    files[name].write(column.data)
                    checksums[name].append(zlib.crc32(column.data))
                faults |= new_faults
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
            CacheIndex(checksums=checksums, faults=faults).write(new / _META)
        if folder.exists():  # damaged or stale
            os.rename(folder, beside / "old")
        try:
            os.rename(new, folder)
        except OSError:
            # Without locks, as on some network disks, another run may be first: use its cache.
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    _remove_unused()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs from building the same cache, where the file system has locks."""
    lock = FileLock(folder.parent / f".{folder.name}.lock", fallback_to_soft=False)
    with contextlib.suppress(OSError, NotImplementedError):
        lock.acquire()
        # No other build is running: these were interrupted.
        for leftover in folder.parent.glob(f".{folder.name}.*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield
    finally:
        lock.release()


def _remove_unused() -> None:
    """Remove caches of all kinds, locks and interrupted builds by the time of their last use."""
    before = time.time() - 86400 * UNUSED_DAYS
    for kind in ("images", "shards", "features"):
        for entry in cache_folder(kind).glob("*"):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < before:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _read(
    folder: Path, paths: Sequence[str], size: Size, pixels: PixelFormat
) -> DecodedImages | None:
    """Return the cache in a folder; None if it is missing, damaged or stale.

    Lengths and checksums are compared, of a large column those of blocks spread evenly over it.
    Unreadable images are tried again: a lost connection leaves no trace in the stamp of a file.
    """
    arrays: dict[str, NDArray[Any]] = {}
    maps = []
    try:
        index = CacheIndex.read(folder / _META)
        for name, (kind, shape) in _columns(len(paths), size, pixels).items():
            width = np.dtype(kind).itemsize * math.prod(shape[1:])
            with (folder / name).open("rb") as file:
                # Shared and read-only: a private map of a file beyond the memory would be refused.
                maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                checksums = index.checksums[name]
                step = block_length(size, pixels)
                blocks = range(0, shape[0], step)
                if len(maps[-1]) != shape[0] * width or len(checksums) != len(blocks):
                    return None
                checked = max(1, _CHECKED_BYTES // (step * width))
                for block in range(0, len(blocks), -(-len(blocks) // checked)):
                    file.seek(blocks[block] * width)
                    if zlib.crc32(file.read(step * width)) != checksums[block]:
                        return None
            arrays[name] = np.frombuffer(maps[-1], dtype=kind).reshape(shape)
        bad = [Path(paths[row]) for row in index.faults]
    except (FileNotFoundError, ModelError, ValueError, LookupError):
        return None
    if not all(isinstance(answer, str) for answer in decode_images(bad, size, pixels=pixels)):
        return None
    # The time of its last use, for `_remove_unused`; another user's cache may be read-only.
    with contextlib.suppress(OSError):
        os.utime(folder)
    return DecodedImages(**arrays, faults=index.faults, maps=maps)


def _columns(count: int, size: Size, pixels: PixelFormat) -> Columns:
    """Return type and shape of each column of a cache of `count` images."""
    kind = "|u1" if pixels.bits == 8 else "<u2"
    return {
        "pixels": (kind, (count, pixels.channels, *sides(size))),
        "digests": ("|u1", (count, 32)),
        "moments": ("<u8", (count, 2, pixels.channels)),
        "shapes": ("<i4", (count, 2)),
        "modes": ("|S8", (count,)),
    }


def block_length(size: Size, pixels: PixelFormat = RGB8) -> int:
    """Return the number of images of a block: at most 256, and 16 MiB unless one takes more."""
    image_bytes = pixels.channels * pixels.bits // 8 * math.prod(sides(size))
    return max(1, min(256, _BLOCK_BYTES // image_bytes))


def _blocks(
    paths: Sequence[str],
    size: Size,
    workers: int,
    progress: Progress | None,
    fit: Fit,
    pixels: PixelFormat,
) -> Iterator[Block]:
    """Decode the images a block at a time.

    A block overwrites the columns of the one before: allocating memory costs more than filling it.
    """
    step = block_length(size, pixels)
    shapes = _columns(step, size, pixels)
    buffers = {name: np.empty(shape, kind) for name, (kind, shape) in shapes.items()}
    for start in range(0, len(paths), step):
        if progress is not None:
            progress(start, len(paths))
        block = [Path(path) for path in paths[start : start + step]]
        columns = {name: column[: len(block)] for name, column in buffers.items()}
        faults = {}
        for i, answer in enumerate(decode_images(block, size, workers, fit, pixels)):
            if isinstance(answer, DecodedImage):
                columns["pixels"][i] = answer.pixels.transpose(2, 0, 1)
                columns["digests"][i] = np.frombuffer(answer.digest, np.uint8)
                columns["shapes"][i] = answer.shape
                columns["modes"][i] = answer.mode.encode()
            else:
                faults[start + i] = answer
                for column in columns.values():
                    column[i] = np.zeros((), column.dtype)
        _fill_moments(columns["pixels"], columns["moments"])
        yield start, columns, faults
    if progress is not None:
        progress(len(paths), len(paths))


def _fill_moments(pixels: Levels, moments: NDArray[np.uint64]) -> None:
    """Fill in sums and sums of squares of every channel, some images at a time (CPU cache)."""
    levels = pixels.reshape(*pixels.shape[:2], -1)
    step = max(1, 2**15 // levels[0].size)
    for start in range(0, len(levels), step):
        some, rows = levels[start : start + step], slice(start, start + step)
        moments[rows, 0] = some.sum(axis=-1, dtype=np.uint64)
        moments[rows, 1] = np.square(some, dtype=np.uint32).sum(axis=-1, dtype=np.uint64)
