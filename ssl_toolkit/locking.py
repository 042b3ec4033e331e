"""One process at a time writes into a folder.

``.lock`` in the folder names that process. Where the file system has locks (`filelock`), they
decide: a lock ends with its process, so that a folder is free again after a kill. Where it has
none, the file decides: one that a dead process of this host left is ignored, one of another host
must be deleted by hand. Two hosts don't see each other's locks on disks that are mounted with
local locks only (NFS with ``local_lock``, Lustre with ``localflock``).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from ssl_toolkit.errors import ModelError
from ssl_toolkit.text import display_path

LOCK = ".lock"
"""Name of the file."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Lock:
    """The right to write into a folder, from `hold` until `release` or the end of its block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A lock of this process, not of the thread that takes it.
        self._lock = FileLock(path, blocking=False, thread_local=False, fallback_to_soft=False)
        self._held = False

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ModelError: as `hold`.
        """
        folder = self._path.parent
        try:
            self._lock.acquire()
        except Timeout:
            raise ModelError(_refusal(folder, _holder(self._path))) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise ModelError(
                    f"{display_path(folder)}: not writable: {error.strerror}"
                ) from error
            holder = _holder(self._path)
            if holder.get("host", socket.gethostname()) != socket.gethostname() or _alive(holder):
                way_out = f"; if it is no longer running, delete {display_path(self._path)}"
                raise ModelError(_refusal(folder, holder) + way_out) from None
        self._held = True
        started = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
        with contextlib.suppress(OSError):  # a message to people: a full disk is no fault of it
            self._path.write_text(json.dumps(content), encoding="utf-8")

    def release(self) -> None:
        """Free the folder; a second call does nothing."""
        if self._held:
            with contextlib.suppress(OSError):  # first: nobody may hold a file without a name
                self._path.unlink()
            self._lock.release()
            self._held = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def hold(folder: Path) -> Lock:
    """Take the lock of a folder.

    Raises:
        ModelError: another process has it (the message names process and host), or the folder is
            missing or not writable.
    """
    if not folder.is_dir():  # `filelock` would make it
        raise ModelError(f"{display_path(folder)}: folder not found")
    lock = Lock(folder / LOCK)
    lock.acquire()
    return lock


def _refusal(folder: Path, holder: dict[str, Any]) -> str:
    named = (
        f"process {holder.get('pid')} on host {holder.get('host')} since {holder.get('started')}"
        if holder
        else "another process"
    )
    return (
        f"{display_path(folder)} is in use by {named}; wait until it ends, or choose another folder"
    )


def _holder(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _alive(holder: dict[str, Any]) -> bool:
    if not holder:
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, LookupError, TypeError, ValueError):
        return True
    return True
