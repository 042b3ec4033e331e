"""One process at a time writes into the folder of a run.

``.lock`` in the folder names the process that does. Where the file system has locks (``flock``;
over NFS too since Linux 2.6.12), they decide: such a lock ends with its process, so that whatever
a killed run left behind is taken over, also from another host. Where it has none, the file
decides: a process of this host that is no longer there has left it behind, one of another host
can't be asked and keeps it until the file is deleted by hand. Two hosts don't see each other's
locks on disks that are mounted so (NFS with ``local_lock``, Lustre with ``localflock``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ssl_toolkit.errors import ModelError
from ssl_toolkit.text import shown

LOCK = ".lock"
"""Name of the file."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Lock:
    """The right to write into a folder; made by `hold`, given back by `release` or its block."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

    def release(self) -> None:
        """Give the folder free; a second call does nothing."""
        if self._handle < 0:
            return
        with contextlib.suppress(OSError):  # removed first: nobody may hold a file without name
            self._path.unlink()
        os.close(self._handle)
        self._handle = -1

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
    """Take the lock of a run's folder.

    Raises:
        ModelError: another process has it (told with its number and host), or the folder is
            missing or can't be written.
    """
    path = folder / LOCK
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ModelError(f"{shown(folder)}: {error.strerror}; it can't be written") from error
        try:
            _take(handle, folder)
            if _is(handle, path):
                _write(handle)
                return Lock(path, handle)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is(handle: int, path: Path) -> bool:
    """Whether an open file is the one of this name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ModelError(_refusal(folder, _read(handle))) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise ModelError(f"{shown(folder)}: {error.strerror}") from error
    else:
        return
    holder = _read(handle)
    if holder and (holder.get("host") != socket.gethostname() or _alive(holder.get("pid"))):
        way_out = f"; if it isn't running any more, delete {shown(folder / LOCK)}"
        raise ModelError(_refusal(folder, holder) + way_out)


def _refusal(folder: Path, holder: dict[str, Any]) -> str:
    named = (
        f"process {holder.get('pid')} on host {holder.get('host')} since {holder.get('started')}"
        if holder
        else "another process"
    )
    return f"{shown(folder)} is in use by {named}; wait for its end, or choose another folder"


def _read(handle: int) -> dict[str, Any]:
    try:
        content = json.loads(os.pread(handle, 4096, 0))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(handle: int) -> None:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
    content = json.dumps(holder).encode()
    # What it says is for people where locks work: a full disk is no reason not to hold it.
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, content, 0)


def _alive(process: Any) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (OSError, TypeError, ValueError):
        return True
    return True
