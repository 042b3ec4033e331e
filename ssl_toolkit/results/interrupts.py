"""Ctrl-C and SIGTERM end a run between two steps, with everything saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = {"SIGINT": 130, "SIGTERM": 143}
"""Exit status by signal."""


class Interrupts:
    """Remembers the first signal; a second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.signal = ""

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name


@contextmanager
def handled() -> Iterator[Interrupts]:
    """Handle SIGINT and SIGTERM inside the block (in the main thread; elsewhere do nothing)."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupts.receive) for number in numbers]
    try:
        yield interrupts
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
