"""Runs as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from ssl_toolkit.config.options import Options, option
from ssl_toolkit.interfaces import Job, JobResult, Launcher
from ssl_toolkit.launchers.job import JobProcess, unstarted
from ssl_toolkit.processes.children import GRACE, TICK, by_signal, cores, kill


class Local(Launcher):
    """Some runs at a time, each in a process of its own; with GPUs, each on its own."""

    class Config(Options):
        """Options of the local launcher."""

        jobs: int | None = option(
            None, ge=1, help="runs at a time; none: one a GPU, without GPUs one a core"
        )

    options: Config

    def __init__(self, options: Config) -> None:
        super().__init__(options)
        self._stopped_at: float | None = None
        self._running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = {}

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Launcher`."""
        waiting = list(jobs)
        slots = list(range(self.slots(jobs)))
        try:
            while self._running or (waiting and self._stopped_at is None):
                while waiting and slots and self._stopped_at is None:
                    job = waiting.pop(0)
                    try:
                        self._running[slots[0]] = job, _start(job, slots[0])
                    except OSError as error:
                        yield JobResult(job, *unstarted(error))
                    else:
                        slots.pop(0)
                for slot, (job, process) in list(self._running.items()):
                    status = process.poll()
                    if status is not None:
                        del self._running[slot]
                        slots.append(slot)
                        yield JobResult(job, status, by_signal(status))
                self._end_when_stopped()
                time.sleep(TICK)
        finally:
            for _, process in self._running.values():
                kill(process)

    def stop(self) -> None:
        """See `Launcher`."""
        self._stopped_at = time.monotonic()
        for _, process in list(self._running.values()):
            process.terminate()

    def slots(self, jobs: Sequence[Job]) -> int:
        """How many of these run at a time."""
        if self.options.jobs is not None:
            return self.options.jobs
        if gpus := max(map(gpus_here, jobs), default=0):
            return max(1, len(visible_gpus()) // gpus)
        return max(1, min(len(jobs), cores()))

    def _end_when_stopped(self) -> None:
        if self._stopped_at is not None and time.monotonic() - self._stopped_at > GRACE:
            for _, process in self._running.values():
                kill(process)


def visible_gpus() -> list[str]:
    """Names of the GPUs for ``CUDA_VISIBLE_DEVICES``; those that are set there, if it is set."""
    if given := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [name for name in given.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def gpus_here(job: Job) -> int:
    """GPUs that a job gets on this machine; counting them makes no context on any."""
    import torch

    return job.gpus or (job.gpus_if_any if torch.cuda.device_count() else 0)


def _start(job: Job, slot: int) -> subprocess.Popen[bytes]:
    count = gpus_here(job)
    if not count:
        return JobProcess.of(job).start()
    gpus = visible_gpus()
    own = [gpus[number % len(gpus)] for number in range(slot * count, (slot + 1) * count)]
    return JobProcess.of(job, CUDA_VISIBLE_DEVICES=",".join(dict.fromkeys(own))).start()
