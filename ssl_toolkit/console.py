"""Print lines for people, and keep them in a log."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console as RichConsole
from rich.text import Text

from ssl_toolkit.errors import visible
from ssl_toolkit.files import append_line
from ssl_toolkit.stdio import Tolerant
from ssl_toolkit.text import duration


class Console:
    """Prints the progress of a run and keeps what was printed in its log.

    Args:
        quiet: print warnings and the final table only; the log gets everything.
        verbose: print every row of metrics with all its values, not only the evaluations.
        silent: print nothing at all.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, silent: bool = False) -> None:
        self._silent = silent
        self._quiet = quiet
        self.verbose = verbose
        # soft_wrap: lines are never wrapped or cut in a file.
        file = cast(TextIO, Tolerant(sys.stdout)) if sys.stdout else None
        self.rich: RichConsole = RichConsole(
            file=file, soft_wrap=True, highlight=False, quiet=silent
        )
        """The underlying console of rich."""
        self._early: list[str] = []
        self._log: Path | None = None
        self._reading: tuple[int, float] | None = None
        self._reading_start = 0.0

    def log_to(self, path: Path) -> None:
        """Append every line to a file, those printed before included."""
        self._log = path
        for line in self._early:
            self.log(line)
        self._early = []

    def say(self, text: str, *, important: bool = False) -> None:
        """Print one line, its control characters escaped; if quiet, only an important one."""
        text = visible(text)
        if important or not self._quiet:
            self.rich.print(Text(text))
        if self._log is None:
            self._early.append(text)
        else:
            self.log(text)

    def warn(self, text: str) -> None:
        """Print a line that starts with ``warning:``."""
        self.say(f"warning: {text}", important=True)

    def reading(self, done: int, total: int) -> None:
        """Print how many images have been read: a line for a large set, then one for each tenth.

        Tenths that take under ten seconds have no line.
        """
        now = time.monotonic()
        if self._reading is None or done < self._reading[0]:
            self._reading = (done, now)
            self._reading_start = now
            if total >= 2000:
                self.say(f"reading {total} images …")
        elif done - self._reading[0] >= total / 10 and now - self._reading[1] >= 10:
            self._reading = (done, now)
            left = (now - self._reading_start) / done * (total - done)
            self.say(f"read {done} of {total} images, {duration(left)} left")

    def kind(self) -> dict[str, bool]:
        """Return the arguments of another console like this one."""
        return {"quiet": self._quiet, "verbose": self.verbose, "silent": self._silent}

    def live(self) -> bool:
        """Return True if the terminal shows lines that change."""
        return self.rich.is_terminal and not self.rich.is_dumb_terminal and not self._quiet

    def log(self, line: str) -> None:
        """Append a line to the log alone."""
        if self._log is not None:
            append_line(self._log, line)
