"""Run jobs as Ray tasks: on this machine, or on a cluster whose nodes share a folder."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from ssl_toolkit import ConfigError, Job, JobProcess, JobResult, Launcher, Options, option

OBJECT_STORE = 80_000_000
"""Bytes that a local instance reserves for objects, Ray's minimum: a job returns two values."""


class Ray(Launcher):
    """Runs each job as a task of Ray Core, which restarts it on another node if its node is lost.

    A task reserves the run's CPU threads and its GPU; Ray decides how many fit at a time. A
    restarted run resumes from its last checkpoint. A run that fails by itself is not restarted.
    """

    packages: ClassVar[tuple[str, ...]] = ("ray",)

    class Config(Options):
        """Options of the Ray launcher."""

        address: str | None = option(
            None, help="address of a cluster, or auto; none: start one on this machine"
        )
        retries: int = option(
            3, ge=-1, help="times a run is restarted after its node or worker died; -1: always"
        )
        jobs: int | None = option(None, ge=1, help="runs at a time; none: as many as fit")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._stopping = False

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Launcher`.

        Raises:
            ConfigError: No cluster answers, none can be started here, or no node of it is large
                enough for a run.
        """
        import ray

        with _connected(self.config.address):
            for job in jobs:
                _check_room(job)
            task = ray.remote(max_retries=self.config.retries)(JobProcess.run)
            waiting = list(jobs)
            at_a_time = self.config.jobs or len(waiting)
            running: dict[Any, Job] = {}
            last: list[JobResult] = []
            try:
                while running or (waiting and not self._stopping):
                    while waiting and len(running) < at_a_time and not self._stopping:
                        job = waiting.pop(0)
                        room = task.options(
                            name=job.name,
                            num_cpus=job.threads,
                            num_gpus=_gpus(job),
                            scheduling_strategy="SPREAD",
                        )
                        running[room.remote(JobProcess.of(job))] = job
                    yield from _ready(running, 0.2)
                    if self._stopping:
                        break
            finally:
                last += _end(running)  # before the connection ends, and the workers with it
            yield from last

    def stop(self) -> None:
        """See `Launcher`."""
        self._stopping = True  # no call of Ray inside a signal handler


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to Ray; an existing connection of the program is used and not closed."""
    import ray

    if ray.is_initialized():
        yield
        return
    here: dict[str, Any] = {}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        here = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with JobProcess.interruptible():
            ray.init(
                # None would also mean the cluster of an environment variable.
                address or "local",
                log_to_driver=False,
                configure_logging=False,
                **here,
            )
    except Exception as error:  # a bare Exception where a node takes more than 30 s to start
        ray.shutdown()
        where = f"launcher_options.address={address}" if address else "launcher ray"
        raise ConfigError(f"{where}: can't connect to Ray: {_first_line(error)}") from error
    finally:
        # Ray replaces the handler; SIGTERM must reach `stop`.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _check_room(job: Job) -> None:
    """Reject a job that would wait forever."""
    required = {"CPU": job.threads, "GPU": _gpus(job)}
    if not any(all(node.get(key, 0) >= n for key, n in required.items()) for node in _nodes()):
        gpus = f" and {required['GPU']} GPU(s)" if required["GPU"] else ""
        instead = " or --device cpu" if required["GPU"] else ""
        raise ConfigError(
            f"no node of Ray has {job.threads} CPUs{gpus}, which a run needs; "
            f"start one, or use fewer --threads{instead}"
        )


def _nodes() -> list[dict[str, float]]:
    """Return the resources of each node of the cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _gpus(job: Job) -> int:
    """Return the number of GPUs that a job gets on this cluster."""
    if job.gpus_if_any and any(node.get("GPU", 0) >= job.gpus_if_any for node in _nodes()):
        return job.gpus_if_any
    return job.gpus


def _ready(running: dict[Any, Job], timeout: float) -> Iterator[JobResult]:
    """Remove and yield what ends within some seconds, except for tasks that never started."""
    import ray

    if not running:
        return
    for reference in ray.wait(list(running), num_returns=1, timeout=timeout)[0]:
        job = running.pop(reference)
        try:
            yield JobResult(job, *ray.get(reference))
        except ray.exceptions.TaskCancelledError:
            pass
        except ray.exceptions.RayError as error:
            yield JobResult(job, 1, f"Ray: {_first_line(error)}")


def _end(running: dict[Any, Job]) -> Iterator[JobResult]:
    """Cancel all tasks: waiting ones never start, running ones save and stop."""
    import ray

    for reference in running:
        ray.cancel(reference)
    deadline = time.monotonic() + JobProcess.GRACE + 1
    while running and time.monotonic() < deadline:
        yield from _ready(running, 0.2)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
