"""Run jobs as Slurm jobs, submitted by submitit."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from ssl_toolkit import ConfigError, Job, JobProcess, JobResult, Launcher, Options, option
from ssl_toolkit_slurm.task import SlurmTask

POLL = 0.5
"""Seconds between two polls of the jobs."""


class Slurm(Launcher):
    """Runs each job as a job of one array; it resumes after its time limit or a preemption.

    Files of Slurm and submitit are in ``slurm`` beside the logs of the runs.

    Raises:
        ConfigError: This machine can't submit jobs.
    """

    packages: ClassVar[tuple[str, ...]] = ("submitit",)

    class Config(Options):
        """Options of the Slurm launcher."""

        cluster: Literal["slurm", "local"] = option(
            "slurm", help="local: processes on this machine, all at once, for a trial"
        )
        partition: str | None = option(None, min_length=1, help="partition of the jobs")
        account: str | None = option(None, min_length=1, help="account that is charged")
        minutes: int = option(
            240, ge=1, help="time limit of a job, in minutes; a longer run resumes in another job"
        )
        restarts: int = option(
            10, ge=0, help="times a run resumes in a new job after its time limit"
        )
        cpus: int | None = option(None, ge=1, help="CPUs of a job; none: the threads of a run")
        memory_gb: float | None = option(None, gt=0, help="memory of a job in gigabytes")
        jobs: int | None = option(None, ge=1, help="jobs at a time; none: no limit")
        setup: list[str] = option([], help="shell commands before a run: module load cuda")
        sbatch: dict[str, Any] = option(
            {}, help="further flags of sbatch, without dashes: {constraint: a100, qos: long}"
        )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.cluster == "slurm" and shutil.which("srun") is None:
            raise ConfigError(
                "launcher slurm: srun not found; run this where jobs are submitted, "
                "or try it with --set launcher_options.cluster=local"
            )
        self._stopping = False

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """See `Launcher`."""
        if not jobs or self._stopping:
            return
        running = dict(zip(self._submit(jobs), jobs, strict=True))
        try:
            while running and not self._stopping:
                yield from _finished(running)
                time.sleep(POLL)
        finally:
            for submitted in running:
                submitted.cancel(check=False)
        yield from self._saved(running)

    def stop(self) -> None:
        """See `Launcher`.

        Jobs are canceled with ``scancel``: SIGTERM, and SIGKILL after Slurm's ``KillWait``
        (30 s unless the cluster says otherwise). A run saves within 8 s of SIGTERM.
        """
        self._stopping = True

    def _saved(self, running: dict[Any, Job]) -> Iterator[JobResult]:
        """Wait for canceled jobs, and yield those that had started."""
        deadline = time.monotonic() + JobProcess.GRACE + 1
        while running and time.monotonic() < deadline:
            for submitted, job in list(running.items()):
                # Slurm reports the end of a job late; the lock of the run's folder is gone at once.
                ended = self.config.cluster == "slurm" or submitted.done()
                if ended and JobProcess.of(job).folder_is_free():
                    del running[submitted]
                    if submitted.paths.stdout.exists():
                        yield JobResult(job, 128 + signal.SIGTERM)
            time.sleep(0.1)

    def _gpus(self, jobs: Sequence[Job]) -> int:
        """Return the number of GPUs that each job requests; Slurm gives it no others.

        Raises:
            ConfigError: The device is ``auto``, which does not determine whether jobs need GPUs.
        """
        if self.config.cluster == "local":
            return max(job.local_gpus for job in jobs)
        requested = any("gpu" in f"{key}={value}" for key, value in self.config.sbatch.items())
        if any(job.gpus_if_any for job in jobs) and not requested:
            raise ConfigError(
                "--device auto: a job of Slurm has only the GPUs that it requests; use --device "
                "cuda, which requests one per run, or --device cpu"
            )
        return max(job.gpus for job in jobs)

    def _submit(self, jobs: Sequence[Job]) -> list[Any]:
        import submitit

        config = self.config
        executor = submitit.AutoExecutor(
            jobs[0].log.parent / "slurm",
            cluster=config.cluster,
            slurm_max_num_timeout=config.restarts,
            local_max_num_timeout=config.restarts,
        )
        parameters = {
            "slurm_partition": config.partition,
            "slurm_account": config.account,
            "slurm_setup": config.setup or None,
            "slurm_array_parallelism": config.jobs,
            "mem_gb": config.memory_gb,
            "gpus_per_node": self._gpus(jobs) or None,
        }
        executor.update_parameters(
            name="ssl-toolkit",
            timeout_min=config.minutes,
            nodes=1,
            tasks_per_node=1,
            cpus_per_task=config.cpus or max(job.threads for job in jobs),
            slurm_additional_parameters={"requeue": True, **config.sbatch},
            **{key: value for key, value in parameters.items() if value is not None},
        )
        with JobProcess.interruptible(), executor.batch():
            return [executor.submit(SlurmTask(JobProcess.of(job))) for job in jobs]


def _finished(running: dict[Any, Job]) -> Iterator[JobResult]:
    """Remove the jobs that are done, and yield their results."""
    for submitted in [submitted for submitted in running if submitted.done()]:
        job = running.pop(submitted)
        if submitted.exception() is None:
            yield JobResult(job, *submitted.result())
        else:
            where = f"{submitted.paths.stderr}"
            yield JobResult(
                job, 1, f"job {submitted.job_id} ended as {submitted.state}; see {where}"
            )
