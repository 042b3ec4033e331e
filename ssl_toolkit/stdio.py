"""Keep a process running when the reader of its standard output or error leaves."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import Any, TextIO

from typing_extensions import Buffer


class _Descriptor(io.FileIO):
    """An open descriptor that takes everything, also once nobody reads it or its disk is full."""

    lost: OSError | None = None
    """Why what was written could not be; None while everything could."""

    def write(self, data: Buffer, /) -> int:
        """Write as `io.FileIO` does; after the first failure everything goes to nowhere."""
        try:
            while (written := super().write(data)) is None:  # the other end asked not to block
                select.select([], [self.fileno()], [])
        except OSError as error:
            self.lost = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # for libraries and the processes of a run as well
            os.close(nowhere)
            return memoryview(data).nbytes
        return written


def protect() -> None:
    """Make standard output and error of this process never fail.

    The process continues with its own exit status when the reader of a pipe has left, a disk is
    full or a descriptor was closed by the parent process. `lost` says what became of the
    output. Streams that a program has put in place of its own are left alone.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # else some file would get the number
        os.set_inheritable(free, True)
    os.close(free)
    if sys.stdout is sys.__stdout__:
        sys.stdout = protected(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = protected(sys.stderr, 2)


def protected(stream: TextIO | None, number: int) -> TextIO:
    """Return a stream that never fails.

    Args:
        stream: whose encoding and buffering it gets; None where the process has none.
        number: the descriptor that it writes to.
    """
    unbuffered = getattr(stream, "write_through", False)
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(number, "w", closefd=False)),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=unbuffered or getattr(stream, "line_buffering", number == 2),
    )


def lost(stream: TextIO) -> OSError | None:
    """Return the error by which output was lost; None if none was, or for other streams."""
    error = getattr(getattr(getattr(stream, "buffer", None), "raw", None), "lost", None)
    return error if isinstance(error, OSError) else None


def missed(stream: TextIO) -> OSError | None:
    """Return the error by which output was lost; None if the reader of a pipe left."""
    stream.flush()
    error = lost(stream)
    if error is None or isinstance(error, ConnectionError):
        return None
    return OSError(error.errno, error.strerror, "standard output")


class Tolerant:
    """A stream of the calling program whose write errors are ignored.

    Args:
        stream: to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
