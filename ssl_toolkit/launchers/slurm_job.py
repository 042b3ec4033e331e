"""What a job of Slurm calls; free of torch, as `work` is."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

from ssl_toolkit.launchers.job import JobProcess
from ssl_toolkit.processes.children import end

PREEMPTED = 120.0
"""Seconds that a job whose run was asked to end waits for Slurm to kill and requeue it."""


class SlurmTask:
    """What submitit pickles, calls in a job, and asks for a successor when the time is up.

    Args:
        work: to be carried out.
    """

    def __init__(self, work: JobProcess) -> None:
        self._work = work
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> tuple[int, str]:
        """Carry the work out; status and reason, as `JobProcess.carry_out`."""
        ended = self._work.carry_out(self._keep)
        if ended[0] in (128 + signal.SIGTERM, -signal.SIGTERM):
            # Slurm sends SIGTERM to all of a job that it pre-empts, a while before it kills it
            # and puts it back into the queue. A result by now would count as its end.
            time.sleep(PREEMPTED)
        return ended

    def _keep(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def checkpoint(self) -> Any:
        """Let the run save, and put it back into the queue; submitit calls it at SIGUSR2."""
        import submitit

        if self._process is not None:
            end(self._process)
        return submitit.helpers.DelayedSubmission(SlurmTask(self._work))
