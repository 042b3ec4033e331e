"""Runs as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from ssl_toolkit.config.options import Options, option
from ssl_toolkit.interfaces import Ended, Launcher, Unit
from ssl_toolkit.launchers.job import Work, unstarted
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
        self._running: dict[int, tuple[Unit, subprocess.Popen[bytes]]] = {}

    def launch(self, units: Sequence[Unit]) -> Iterator[Ended]:
        """See `Launcher`."""
        waiting = list(units)
        slots = list(range(self.slots(units)))
        try:
            while self._running or (waiting and self._stopped_at is None):
                while waiting and slots and self._stopped_at is None:
                    unit = waiting.pop(0)
                    try:
                        self._running[slots[0]] = unit, _start(unit, slots[0])
                    except OSError as error:
                        yield Ended(unit, *unstarted(error))
                    else:
                        slots.pop(0)
                for slot, (unit, process) in list(self._running.items()):
                    status = process.poll()
                    if status is not None:
                        del self._running[slot]
                        slots.append(slot)
                        yield Ended(unit, status, by_signal(status))
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

    def slots(self, units: Sequence[Unit]) -> int:
        """How many of these run at a time."""
        if self.options.jobs is not None:
            return self.options.jobs
        if gpus := max(map(gpus_here, units), default=0):
            return max(1, len(visible_gpus()) // gpus)
        return max(1, min(len(units), cores()))

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


def gpus_here(unit: Unit) -> int:
    """GPUs that a unit gets on this machine; counting them makes no context on any."""
    import torch

    return unit.gpus or (unit.gpus_if_any if torch.cuda.device_count() else 0)


def _start(unit: Unit, slot: int) -> subprocess.Popen[bytes]:
    count = gpus_here(unit)
    if not count:
        return Work.of(unit).start()
    gpus = visible_gpus()
    own = [gpus[number % len(gpus)] for number in range(slot * count, (slot + 1) * count)]
    return Work.of(unit, CUDA_VISIBLE_DEVICES=",".join(dict.fromkeys(own))).start()
