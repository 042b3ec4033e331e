"""How far the runs of a comparison are, on a terminal, read from their own files."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ssl_toolkit.console import Console
from ssl_toolkit.errors import visible
from ssl_toolkit.interfaces import Job
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import last_step

_EVERY = 1.0


class Watch:
    """A live line while its block runs; nothing where the console shows none.

    Args:
        jobs: the runs.
        steps: of each.
        console: where it is shown.
    """

    def __init__(self, jobs: Sequence[Job], steps: Sequence[int], console: Console) -> None:
        self._jobs = list(zip(jobs, steps, strict=True))
        self._ended = threading.Event()
        self._progress = Progress(
            TextColumn("{task.completed:.0f} of {task.total:.0f} steps"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.description}", markup=False),
            console=console.rich,
            transient=True,
            disable=not console.live(),
        )
        self._task = self._progress.add_task("", total=sum(steps))
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        if not self._progress.disable:
            self._progress.start()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._progress.stop()

    def _follow(self) -> None:
        while not self._ended.wait(_EVERY):
            at = [
                (job, last_step(RunFolder(job.folder).metrics), steps) for job, steps in self._jobs
            ]
            busy = [f"{job.name}: {step}/{steps}" for job, step, steps in at if 0 < step < steps]
            self._progress.update(
                self._task,
                completed=sum(step for _, step, _ in at),
                description=visible("; ".join(busy)),
            )
