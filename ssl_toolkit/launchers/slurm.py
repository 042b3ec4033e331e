"""Runs as jobs of Slurm, submitted by submitit."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ssl_toolkit.config.options import Options, option
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.interfaces import Job, JobResult, Launcher
from ssl_toolkit.launchers import require
from ssl_toolkit.launchers.job import JobProcess, interruptible_children, is_free
from ssl_toolkit.launchers.local import gpus_here
from ssl_toolkit.launchers.slurm_job import SlurmTask
from ssl_toolkit.processes.children import GRACE, TICK

LOOK = 0.5
"""Seconds between two looks at the folder of the jobs."""


class Slurm(Launcher):
    """Each run is a job of one array; a job whose time is up or that is pre-empted goes on later.

    What Slurm and submitit write lies in ``slurm`` beside the logs of the runs.

    Raises:
        ConfigError: this machine can't submit jobs.
        PluginError: submitit isn't installed.
    """

    class Config(Options):
        """Options of the Slurm launcher."""

        cluster: Literal["slurm", "local"] = option(
            "slurm", help="local: processes of this machine, all at once, to try it out"
        )
        partition: str | None = option(None, min_length=1, help="partition of the jobs")
        account: str | None = option(None, min_length=1, help="account that pays")
        minutes: int = option(
            240, ge=1, help="a job's time limit, in minutes; a run that needs more goes on after it"
        )
        restarts: int = option(
            10, ge=0, help="times a run goes on in a new job after its time was up"
        )
        cpus: int | None = option(None, ge=1, help="CPUs of a job; none: the threads of a run")
        memory_gb: float | None = option(None, gt=0, help="memory of a job, in gigabytes")
        jobs: int | None = option(None, ge=1, help="jobs at a time; none: as Slurm finds room")
        setup: list[str] = option([], help="shell commands before a run: module load cuda")
        sbatch: dict[str, Any] = option(
            {}, help="further flags of sbatch, without dashes: {constraint: a100, qos: long}"
        )

    options: Config

    def __init__(self, options: Config) -> None:
        super().__init__(options)
        require("submitit", "slurm")
        if options.cluster == "slurm" and shutil.which("srun") is None:
            raise ConfigError(
                "launcher slurm: no srun on this machine; start it where jobs are submitted, "
                "or try it out with --set launcher_options.cluster=local"
            )
        self._stopping = False

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Launcher`."""
        if not jobs or self._stopping:
            return
        running = dict(zip(self._submit(jobs), jobs, strict=True))
        try:
            while running and not self._stopping:
                yield from _ended(running)
                time.sleep(LOOK)
        finally:
            for submitted in running:
                submitted.cancel(check=False)
        yield from self._saved(running)

    def stop(self) -> None:
        """See `Launcher`.

        Jobs are cancelled with ``scancel``: SIGTERM, and SIGKILL after Slurm's ``KillWait``
        (30 s unless the cluster says otherwise). A run saves within 8 s of SIGTERM.
        """
        self._stopping = True

    def _saved(self, running: dict[Any, Job]) -> Iterator[JobResult]:
        """Wait a while for cancelled jobs, and tell those that had begun."""
        deadline = time.monotonic() + GRACE + 1
        while running and time.monotonic() < deadline:
            for submitted, job in list(running.items()):
                # Slurm reports late that a job has ended; the run's folder tells at once.
                ended = self.options.cluster == "slurm" or submitted.done()
                if ended and is_free(job.folder):
                    del running[submitted]
                    if submitted.paths.stdout.exists():
                        yield JobResult(job, 128 + signal.SIGTERM)
            time.sleep(TICK)

    def _gpus(self, jobs: Sequence[Job]) -> int:
        """GPUs that each job asks for; Slurm gives it no others.

        Raises:
            ConfigError: whether it shall have any can't be known here.
        """
        if self.options.cluster == "local":
            return max(map(gpus_here, jobs))
        asked = any("gpu" in f"{key}={value}" for key, value in self.options.sbatch.items())
        if any(job.gpus_if_any for job in jobs) and not asked:
            raise ConfigError(
                "--device auto: a job of Slurm has only the GPUs that it asks for; say --device "
                "cuda, which asks for one a run, or --device cpu"
            )
        return max(job.gpus for job in jobs)

    def _submit(self, jobs: Sequence[Job]) -> list[Any]:
        import submitit

        options = self.options
        executor = submitit.AutoExecutor(
            jobs[0].log.parent / "slurm",
            cluster=options.cluster,
            slurm_max_num_timeout=options.restarts,
            local_max_num_timeout=options.restarts,
        )
        given = {
            "slurm_partition": options.partition,
            "slurm_account": options.account,
            "slurm_setup": options.setup or None,
            "slurm_array_parallelism": options.jobs,
            "mem_gb": options.memory_gb,
            "gpus_per_node": self._gpus(jobs) or None,
        }
        executor.update_parameters(
            name="ssl-toolkit",
            timeout_min=options.minutes,
            nodes=1,
            tasks_per_node=1,
            cpus_per_task=options.cpus or max(job.threads for job in jobs),
            slurm_additional_parameters={"requeue": True, **options.sbatch},
            **{key: value for key, value in given.items() if value is not None},
        )
        with interruptible_children(), executor.batch():
            return [executor.submit(SlurmTask(JobProcess.of(job))) for job in jobs]


def _ended(running: dict[Any, Job]) -> Iterator[JobResult]:
    """Take out the jobs that are done."""
    for submitted in [submitted for submitted in running if submitted.done()]:
        job = running.pop(submitted)
        if submitted.exception() is None:
            yield JobResult(job, *submitted.result())
        else:
            where = f"{submitted.paths.stderr}"
            yield JobResult(
                job, 1, f"job {submitted.job_id} ended as {submitted.state}; see {where}"
            )
