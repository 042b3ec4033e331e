"""Run one job inside a Slurm job."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Any

from ssl_toolkit import JobProcess

PREEMPTED = 120.0
"""Seconds that a job whose run got SIGTERM waits for Slurm to kill and requeue it."""


class SlurmTask:
    """Callable that submitit pickles, calls in a Slurm job, and checkpoints at the time limit.

    Args:
        job: The process to run.
    """

    def __init__(self, job: JobProcess) -> None:
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> tuple[int, str]:
        """Run the job; return status and reason, as `JobProcess.run`."""
        result = self._job.run(self._keep)
        if result[0] in (128 + signal.SIGTERM, -signal.SIGTERM):
            # Slurm sends SIGTERM to all processes of a job that it preempts, some time before it
            # kills and requeues it. Returning now would end the job for good.
            time.sleep(PREEMPTED)
        return result

    def _keep(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def checkpoint(self) -> Any:
        """Let the run save, and requeue it; submitit calls this at SIGUSR2."""
        import submitit

        if self._process is not None:
            JobProcess.stop(self._process)
        return submitit.helpers.DelayedSubmission(SlurmTask(self._job))
