"""The states of the runs of a comparison: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from ssl_toolkit.comparisons.ranking import ranking
from ssl_toolkit.comparisons.schema import ComparedRun, score_title
from ssl_toolkit.console import Console
from ssl_toolkit.errors import visible
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import last_step
from ssl_toolkit.text import duration

_FRAME = 6
"""Lines of a terminal that the table needs in addition to its rows."""


class State(NamedTuple):
    """The state of a run: a word and its details."""

    word: str
    """``waiting``, ``running``, ``done``, ``stopped`` or ``failed``."""
    detail: str = ""


def state_of(run: ComparedRun, failure: str = "") -> State:
    """Return the state of a run that has ended.

    Args:
        run: The run.
        failure: Reason of a run that failed.
    """
    if run.completed and run.summary is not None:
        seconds, score = run.summary.seconds, "no test split"
        if run.summary.is_tested:
            ranked_by, _ = ranking([run.summary])
            score = f"{score_title(ranked_by)} {run.scores[ranked_by]:.4f}"
        return State("done", f"{score}, {duration(seconds)}")
    if run.status == "interrupted":
        return State("stopped", f"by {run.reason}")
    return State("failed", failure or run.reason)


class RunStates:
    """The states of runs, shown while the block of `shown` runs.

    Args:
        runs: Folder and steps of each run by its name, including those that ended before.
        ended: States of the runs that ended before.
        console: Prints the table or the lines.
    """

    def __init__(
        self,
        runs: Mapping[str, tuple[Path, int]],
        ended: Mapping[str, State],
        console: Console,
    ) -> None:
        self._runs = {name: (RunFolder(path), steps) for name, (path, steps) in runs.items()}
        self._ended = dict(ended)
        self._before = len(ended)
        self._sizes = {name: _sizes(folder) for name, (folder, _) in self._runs.items()}
        self._console = console
        self._started = time.monotonic()
        self._live: Live | None = None
        if console.live():
            self._live = Live(
                console=console.rich,
                get_renderable=self._table,
                refresh_per_second=1,
                vertical_overflow="crop",
            )

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the states until the block ends."""
        if self._before:
            self._console.say(f"{self._before} of {len(self._runs)} runs are finished already")
        with self._live or nullcontext():
            yield self

    def end(self, name: str, state: State) -> None:
        """Show that a run has ended."""
        self._ended[name] = state
        if state.word == "failed":
            self._console.warn(f"{name}: failed: {state.detail}")
        elif state.word == "stopped":
            self._console.say(f"{name}: stopped {state.detail}", important=True)
        elif self._live is None:
            self._console.say(f"{name}: {state.detail}")
        if self._live is None and (left := self._time_left()):
            self._console.say(f"{len(self._ended)} of {len(self._runs)} runs ended, {left}")

    def states(self) -> dict[str, State]:
        """Return the state of each run by its name; of those that run, from their own files."""
        return {name: self._ended.get(name) or self._state(name) for name in self._runs}

    def _state(self, name: str) -> State:
        folder, steps = self._runs[name]
        if _sizes(folder) == self._sizes[name]:  # nothing was written since the comparison started
            return State("waiting")
        return State("running", f"step {last_step(folder.metrics)}/{steps}")

    def _time_left(self) -> str:
        """Return an estimate from the runs that ended; empty without one."""
        ended, left = len(self._ended) - self._before, len(self._runs) - len(self._ended)
        if not ended or not left:
            return ""
        return f"about {duration((time.monotonic() - self._started) / ended * left)} left"

    def _table(self) -> Table:
        states = self.states()
        counts = Counter(state.word for state in states.values())
        parts = [f"{count} {word}" for word, count in counts.items()]
        table = Table(caption=", ".join([*parts, *filter(None, [self._time_left()])]))
        for name in ("run", "state", "detail"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        for name in self._shown(states):
            table.add_row(*(Text(visible(cell)) for cell in (name, *states[name])))
        return table

    def _shown(self, states: Mapping[str, State]) -> list[str]:
        """Return the names of runs that fit the screen, in order; those that run come first."""
        rows = max(1, self._console.rich.height - _FRAME)
        if len(self._ended) == len(states) or len(states) <= rows:
            return [*states]
        ranked = ("running", "failed", "stopped", "waiting", "done")
        fitting = sorted(states, key=lambda name: ranked.index(states[name].word))[:rows]
        return [name for name in states if name in fitting]


def _sizes(folder: RunFolder) -> list[int]:
    files = (folder.log, folder.metrics)
    return [path.stat().st_size if path.exists() else 0 for path in files]
