"""One process at a time writes to a folder, or to a file that several programs change.

``.lock`` in the folder, or ``.NAME.lock`` beside the file, names that process. Where the file
system supports locks (`filelock`), they decide: a lock ends with its process, so that a folder is
free again after a kill. Elsewhere the file decides: it is ignored if its process on this host has
ended, and must be deleted by hand if it is of another host. Hosts do not see each other's locks on
disks mounted with local locks only (NFS with ``local_lock``, Lustre with ``localflock``).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ssl_toolkit.errors import ModelError
from ssl_toolkit.text import display_path

LOCK = ".lock"
"""Name of the file."""

_HOLDER = re.compile(r"process (\d{1,9}) on host (\S+) since (\S+)")
"""Content of the file."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def hold(folder: Path) -> ExitStack:
    """Lock a folder until the end of the returned context, or its `close`.

    Raises:
        ModelError: another process holds the lock (the message names process and host), or the
            folder is not found or not writable.
    """
    if not folder.is_dir():  # `filelock` would create it
        raise ModelError(f"{display_path(folder)}: folder not found")
    return _hold(folder / LOCK, folder)


def hold_file(path: Path) -> ExitStack:
    """Lock a file, which need not exist, until the end of the returned context, or its `close`.

    Raises:
        ModelError: As `hold`.
    """
    if not path.parent.is_dir():
        raise ModelError(f"{display_path(path.parent)}: folder not found")
    return _hold(path.with_name(f".{path.name}{LOCK}"), path)


def _hold(path: Path, what: Path) -> ExitStack:
    """Lock by a file; `what` is the folder or file that is in use, for messages."""
    # Without `thread_local`, any thread of this process may release it.
    lock = FileLock(path, blocking=False, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise ModelError(_refusal(path, what)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise ModelError(f"{display_path(what)}: not writable: {error.strerror}") from error
        if _alive(_holder(path)):
            way_out = f"; if it is no longer running, delete {display_path(path)}"
            raise ModelError(_refusal(path, what) + way_out) from None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    content = f"process {os.getpid()} on host {socket.gethostname()} since {now}"
    with suppress(OSError):  # only a message for people; the disk may be full
        path.write_text(content, encoding="utf-8")
    stack = ExitStack()
    stack.callback(lock.release)
    # Removed before the release: another process must not lock a file without a name.
    stack.callback(_remove, path)
    return stack


def clear(folder: Path, last: str = "") -> None:
    """Remove the content of a folder, except for its lock; links are not followed.

    Args:
        folder: The folder.
        last: Name of the file by which a folder of this kind is known, which is removed last.
    """
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == last):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _refusal(path: Path, what: Path) -> str:
    holder = _holder(path)
    return (
        f"{display_path(what)} is in use by {holder[0] if holder else 'another process'}; wait "
        f"until it ends, or choose another {'folder' if what.is_dir() else 'file'}"
    )


def _holder(path: Path) -> re.Match[str] | None:
    """Return the process that the lock file names; None if the file is damaged."""
    with suppress(OSError):
        return _HOLDER.fullmatch(path.read_text(encoding="utf-8", errors="replace"))
    return None


def _alive(holder: re.Match[str] | None) -> bool:
    """Return True unless the holder is a process of this host that has ended."""
    if holder is None or holder[2] != socket.gethostname():
        return holder is not None
    try:
        os.kill(int(holder[1]), 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # else a process of another user
    return True
