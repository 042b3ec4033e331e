"""Run jobs in this process, for plugins that other processes don't know."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import torch

from ssl_toolkit.config.loading import load_config
from ssl_toolkit.config.options import Options
from ssl_toolkit.errors import ToolkitError, one_line, visible_lines
from ssl_toolkit.interfaces import Job, JobResult, Launcher
from ssl_toolkit.runs.train import train


class InProcess(Launcher):
    """Run one job of a comparison after the other; not a plugin, because it runs no commands.

    The output of a run goes to its log, and a run that fails doesn't affect the others, as in a
    process of its own. Ctrl-C reaches the run, which saves and ends, and then the comparison.
    """

    def __init__(self) -> None:
        super().__init__(Options())
        self._stopped = False

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Launcher`; the jobs are those of `compare`."""
        for job in jobs:
            if self._stopped:
                return
            yield _run(job)

    def stop(self) -> None:
        """Start no other job."""
        self._stopped = True

    def slots(self, count: int) -> int:
        """See `Launcher`."""
        return 1


def _run(job: Job) -> JobResult:
    with _output_to(job.log), _threads(job.threads):
        try:
            assert job.config is not None, "measuring starts no job in this process"
            result = train(load_config([job.config], {"output": str(job.folder)}), resume=True)
        except ToolkitError as error:
            for message in error.messages:
                print("error:", one_line(message))
            return JobResult(job, error.exit_status)
        except Exception:  # of a plugin
            print(visible_lines(traceback.format_exc()))
            return JobResult(job, 1)
    if result.signal:
        signal.raise_signal(getattr(signal, result.signal))
    return JobResult(job, 0)


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("a", encoding="utf-8", errors="backslashreplace") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        yield


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
