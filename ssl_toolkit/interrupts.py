"""End a run at Ctrl-C or SIGTERM within seconds, with everything saved and no traceback."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STATUS = {"SIGINT": 130, "SIGTERM": 143}
"""Exit status by signal."""

PATIENCE = 4.0
"""Fewest seconds for the step or evaluation in progress to end and save."""

LONGER = 3.0
"""Multiple of the longest step so far that it gets, if that is more."""

EXIT_PATIENCE = 1.5
"""Seconds for threads to end at the exit of the program."""

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal; the text is its name, such as SIGTERM."""


class Interrupts:
    """Raises `Interrupted` at a signal; inside `patient`, at the second or after a while."""

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self.signal: str = ""
        """Name of the first signal; empty for none."""
        self._on_signal = on_signal
        self._patient: float | None = None
        self._longest = 0.0
        self._timer: threading.Timer | None = None
        self._ended = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._ended:  # a third signal must not interrupt the cleanup
            return
        first = not self.signal
        self.signal = self.signal or signal.Signals(number).name
        if first:
            self._on_signal()
        if first and self._patient is not None:
            wait = max(self._patient, LONGER * self._longest)
            self._timer = threading.Timer(wait, _thread.interrupt_main)
            self._timer.daemon = True
            self._timer.start()
            return
        self._ended = not first
        raise Interrupted(self.signal)

    @contextmanager
    def patient(self, seconds: float = PATIENCE) -> Iterator[None]:
        """Defer the first signal inside the block, for a while."""
        self._patient = seconds
        try:
            yield
        finally:
            self._patient = None
            self.stop_waiting()

    def took(self, seconds: float) -> None:
        """Note the duration of a step; patience follows the longest one."""
        self._longest = max(self._longest, seconds)

    def stop_waiting(self) -> None:
        """Cancel the timer while a checkpoint is saved."""
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def handled(on_signal: Callable[[], None] = lambda: None) -> Iterator[Interrupts]:
    """Handle SIGINT and SIGTERM inside the block (in the main thread; elsewhere do nothing).

    Args:
        on_signal: called at the first signal.
    """
    interrupts = Interrupts(on_signal)
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = [signal.signal(number, interrupts.receive) for number in _NUMBERS]
    try:
        yield interrupts
    finally:
        for number, handler in zip(_NUMBERS, before, strict=True):
            if signal.getsignal(number) != signal.SIG_IGN:  # the program is ending
                signal.signal(number, handler)


def ignore() -> None:
    """Ignore further signals; the program is about to end."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def exit_status(error: KeyboardInterrupt) -> int:
    """Return the exit status after an interrupt."""
    return STATUS.get(str(error), STATUS["SIGINT"])


def end_soon(status: int) -> None:
    """Exit with a status within `EXIT_PATIENCE` seconds.

    Python would wait for threads, such as one that reads an image from a dead disk.
    """
    ignore()
    last = threading.Timer(EXIT_PATIENCE, os._exit, [status])
    last.daemon = True
    last.start()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()  # os._exit drops what is buffered
