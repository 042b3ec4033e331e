"""Image files decoded once: from then on uint8 pixels in a memory-mapped file.

A cache is a folder ``images/<key>/`` below ``~/.cache/ssl-toolkit``, or below the folder that the
environment variable SSL_TOOLKIT_CACHE names. The key hashes the format, Pillow's version, the
size, how images are made square, and path, length and time of change of every image, or of the
archive that it is in: a start looks at each file but opens none. A cache is built in a folder
beside its own, synced and renamed, so that a build which is killed leaves none; a lock lets a
second run wait for the first and use what it built. Caches that were not used for long go when
another is built.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import PIL
from filelock import FileLock

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.format import (
    ImageCache,
    Progress,
    bytes_of,
    hold_cache,
    read_cache,
    write_cache,
)
from ssl_toolkit.data.cache.in_use import remove_unused
from ssl_toolkit.data.images.archives import container
from ssl_toolkit.files import naming
from ssl_toolkit.text import display_path

VARIABLE = "SSL_TOOLKIT_CACHE"
"""Environment variable with the folder of the caches."""

FORMAT = "3: shorter side, middle square, bicubic"
"""Changes when the files of a cache, or what is done to an image, change."""


def open_cache(
    paths: Sequence[str],
    size: int,
    *,
    workers: int = 0,
    progress: Progress | None = None,
    fit: Fit = "crop",
) -> tuple[ImageCache, str]:
    """The cache of these files at this size; built when it is missing, stale or damaged.

    Args:
        paths: the images, in the order of the rows.
        size: side in pixels.
        workers: threads that decode; 0 decodes in the calling one.
        progress: called while a cache is built, for the first time before the first image.
        fit: see `fit_image`.

    Returns:
        The cache, and a warning: empty, or why the images could not be kept and are in memory.
    """
    if not paths:
        return hold_cache(paths, size, workers, progress, fit), ""
    try:
        folder = cache_root() / _key(paths, size, fit)
        folder.parent.mkdir(parents=True, exist_ok=True)
        cache = read_cache(folder, paths, size)
        if cache is None:
            if progress is not None:
                progress(0, len(paths))
            with _locked(folder):
                # Another run may have built it while this one waited.
                cache = read_cache(folder, paths, size) or _build(
                    folder, paths, size, workers, progress, fit
                )
    except OSError as error:
        place = display_path(Path(os.fsdecode(error.filename or _named_root())))
        warning = (
            f"decoded images can't be kept in {place} ({error.strerror or error}): they stay in "
            f"memory and are decoded again at the next start; {VARIABLE}=DIR names another folder"
        )
        return hold_cache(paths, size, workers, progress, fit), warning
    return cache, ""


def known_cache(paths: Sequence[str], size: int, fit: Fit = "crop") -> ImageCache | None:
    """The cache of these files at this size where there is one; nothing is decoded or written."""
    if not paths:
        return None
    try:
        return read_cache(cache_root() / _key(paths, size, fit), paths, size)
    except OSError:
        return None


def cache_root() -> Path:
    """The folder with all caches of images.

    Raises:
        OSError: none is named and there is no home folder.
    """
    try:
        return Path(_named_root()).expanduser().absolute() / "images"
    except RuntimeError as error:
        raise OSError(errno.ENOENT, str(error), _named_root()) from None


def index_root() -> Path:
    """The folder with the indices of shards, beside the caches.

    Raises:
        OSError: as `cache_root`.
    """
    return cache_root().with_name("shards")


def feature_root() -> Path:
    """The folder with the features of frozen backbones, beside the caches.

    Raises:
        OSError: as `cache_root`.
    """
    return cache_root().with_name("features")


def _named_root() -> str:
    return os.environ.get(VARIABLE) or "~/.cache/ssl-toolkit"


def _key(paths: Sequence[str], size: int, fit: Fit) -> str:
    done = FORMAT if fit == "crop" else f"{FORMAT}\0{fit}"
    content = hashlib.sha256(f"{done}\0{PIL.__version__}\0{size}\0".encode())
    here = os.getcwd()
    archives: dict[str, str] = {}
    for path in paths:
        archive = container(path)
        stamp = _stamp(path) if archive is None else archives.get(archive)
        if archive is not None and stamp is None:
            stamp = archives[archive] = _stamp(archive)
        whole = path if os.path.isabs(path) else os.path.join(here, path)
        content.update(os.fsencode(whole) + f"\0{stamp}\0".encode())
    return content.hexdigest()[:32]


def _stamp(path: str) -> str:
    """Length and time of change."""
    try:
        found = os.stat(path)
    except OSError:
        return "gone"
    return f"{found.st_size} {found.st_mtime_ns}"


def _build(
    folder: Path,
    paths: Sequence[str],
    size: int,
    workers: int,
    progress: Progress | None,
    fit: Fit,
) -> ImageCache:
    """Make a cache's folder, whole or not at all, and open it.

    Raises:
        OSError: the disk is full or can't be written.
    """
    needed = bytes_of(len(paths), size)
    if shutil.disk_usage(folder.parent).free < needed:
        reason = f"no space: {needed / 2**20:,.1f} MiB are needed"
        raise OSError(errno.ENOSPC, reason, str(folder.parent))
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".partial"))
    try:
        with naming(folder.parent, beside):
            (beside / "new").mkdir()
            write_cache(beside / "new", paths, size, workers, progress, fit)
        if folder.exists():  # damaged or stale
            os.rename(folder, beside / "old")
        try:
            os.rename(beside / "new", folder)
        except OSError:
            # Without locks, as on some network disks, another run may be first: use its cache.
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    cache = read_cache(folder, paths, size)
    remove_unused(folder.parent, (index_root(), "*.json"), (feature_root(), "*.npy"))
    if cache is None:
        raise OSError(errno.EIO, "what was written can't be read back", str(folder))
    return cache


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs from building the same cache, where the system has locks."""
    lock = FileLock(folder.parent / f".{folder.name}.lock", fallback_to_soft=False)
    with contextlib.suppress(OSError, NotImplementedError):
        lock.acquire()
        # No other build is alive: what is there was left by one that was killed.
        for leftover in folder.parent.glob(f".{folder.name}.*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield
    finally:
        lock.release()
