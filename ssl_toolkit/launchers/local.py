"""Run jobs as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from ssl_toolkit.config.options import Options, option
from ssl_toolkit.interfaces import Job, JobResult, Launcher
from ssl_toolkit.launchers.job import JobProcess
from ssl_toolkit.processes.children import TICK, cores


class Local(Launcher):
    """Run several jobs at once, each in a separate process and, if available, on separate GPUs."""

    class Config(Options):
        """Options of the local launcher."""

        jobs: int | None = option(
            None, ge=1, help="number of concurrent runs; default: one per GPU, else one per core"
        )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._stopped_at: float | None = None
        self._running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = {}

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Launcher`."""
        waiting = list(jobs)
        slots = list(range(self._slots_of(jobs)))
        try:
            while self._running or (waiting and self._stopped_at is None):
                while waiting and slots and self._stopped_at is None:
                    job = waiting.pop(0)
                    try:
                        self._running[slots[0]] = job, _start(job, slots[0])
                    except OSError as error:
                        yield JobResult(job, *JobProcess.failure(error))
                    else:
                        slots.pop(0)
                for slot, (job, process) in list(self._running.items()):
                    status = process.poll()
                    if status is not None:
                        del self._running[slot]
                        slots.append(slot)
                        yield JobResult(job, status, JobProcess.reason(status))
                self._kill_after_grace()
                time.sleep(TICK)
        finally:
            for _, process in self._running.values():
                JobProcess.kill(process)

    def stop(self) -> None:
        """See `Launcher`."""
        self._stopped_at = time.monotonic()
        for _, process in list(self._running.values()):
            process.terminate()

    def slots(self, count: int) -> int:
        """See `Launcher`."""
        return self.config.jobs or max(1, min(count, cores()))

    def _slots_of(self, jobs: Sequence[Job]) -> int:
        gpus = max((job.local_gpus for job in jobs), default=0)
        if self.config.jobs is None and gpus:
            return max(1, len(visible_gpus()) // gpus)
        return self.slots(len(jobs))

    def _kill_after_grace(self) -> None:
        if self._stopped_at is not None and time.monotonic() - self._stopped_at > JobProcess.GRACE:
            for _, process in self._running.values():
                JobProcess.kill(process)


def visible_gpus() -> list[str]:
    """Return the visible GPUs, by their names in ``CUDA_VISIBLE_DEVICES`` if it is set."""
    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return [name for name in names.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _start(job: Job, slot: int) -> subprocess.Popen[bytes]:
    count = job.local_gpus
    if not count:
        return JobProcess.of(job).start()
    gpus = visible_gpus()
    assigned = [gpus[number % len(gpus)] for number in range(slot * count, (slot + 1) * count)]
    return JobProcess.of(job, CUDA_VISIBLE_DEVICES=",".join(dict.fromkeys(assigned))).start()
