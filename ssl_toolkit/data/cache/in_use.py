"""Which caches are in use, and the removal of those that were not for a long time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

UNUSED_DAYS = 90
"""After so many days without a start that uses it, a cache is removed when another is made."""

META = "meta.json"
"""The file of a cache whose time of change is that of its last use."""


class Use:
    """Says that a cache is in use, for as long as it lives.

    Args:
        folder: of the cache.

    Raises:
        FileNotFoundError: there is none.
        BlockingIOError: it is being removed.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / META, os.O_RDONLY)
        try:
            _lock(self._file, shared=True)
        except BlockingIOError:
            raise
        except OSError:  # no locks here: nothing will be removed
            pass
        with contextlib.suppress(OSError):  # of another user: to read it is enough
            os.utime(folder / META)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


def remove_unused(root: Path, *others: tuple[Path, str]) -> None:
    """Remove caches, left-over parts of them and other files that nobody used lately.

    None that is in use goes, however long ago its run began.

    Args:
        root: the folder of the caches.
        others: folders of files whose time of change is that of their last use, such as the
            indices of shards, and patterns of their names.
    """
    before = time.time() - 86400 * UNUSED_DAYS
    for folder in [*root.glob("[!.]*"), *root.glob(".*.partial")]:
        with contextlib.suppress(OSError):
            if folder.suffix == ".partial":
                if folder.stat().st_mtime < before:
                    shutil.rmtree(folder, ignore_errors=True)
            elif (folder / META).stat().st_mtime < before:
                _remove(folder)
    for file in (file for folder, pattern in others for file in folder.glob(pattern)):
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < before:
                file.unlink()


def _remove(folder: Path) -> None:
    with (folder / META).open("rb") as file:
        _lock(file.fileno(), shared=False)
        # Renamed first: another process finds no cache, never a part of one.
        gone = folder.with_name(f".{folder.name}.unused{os.getpid()}.partial")
        os.rename(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)
    folder.with_name(f".{folder.name}.lock").unlink(missing_ok=True)


def _lock(file: int, *, shared: bool) -> None:
    """Lock a file where the system has locks; `filelock` has no shared ones.

    Raises:
        BlockingIOError: another process has it.
        OSError: the disk has no locks.
    """
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
