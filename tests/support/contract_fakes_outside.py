"""Launchers and loggers that break one rule of their contract each, and valid ones."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contract_fakes import breaks

from ssl_toolkit import (
    Job,
    JobResult,
    Launcher,
    Logger,
    Options,
    RunInfo,
)

# --- launchers ----------------------------------------------------------------------------------


class OneByOne(Launcher):
    """Run one job after the other."""

    def __init__(self, config: Options) -> None:
        super().__init__(config)
        self.stopped = False
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]: ...

    def stop(self) -> None:
        self.stopped = True
        if self.process is not None:
            self.end(self.process)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()

    def plain(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """Launch the jobs without breaking a rule."""
        for job in jobs:
            if self.stopped:
                return
            try:
                yield JobResult(job, self.run(job))
            except OSError as error:
                yield JobResult(job, 1, str(error))

    def run(self, job: Job) -> int:
        with job.log.open("ab") as log:
            self.process = subprocess.Popen(
                job.command,
                stdout=log,
                stderr=log,
                cwd=job.directory,
                env={**os.environ, **self.variables(job)},
            )
        while self.process.poll() is None:
            time.sleep(0.02)
        return self.process.returncode

    def variables(self, job: Job) -> Mapping[str, str]:
        return job.environment


class Serial(OneByOne):
    """It breaks no rule."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        return self.plain(jobs)


@breaks("returns_one_result_per_job")
class Stuttering(OneByOne):
    """It yields each result twice."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        for result in self.plain(jobs):
            yield result
            yield result


@breaks("isolates_failed_jobs")
class Coarse(OneByOne):
    """It yields status 1 for every failure."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        for result in self.plain(jobs):
            yield JobResult(result.job, min(result.status, 1))


@breaks("reports_start_failures")
class Fragile(OneByOne):
    """It doesn't catch the error of a missing program."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        for job in jobs:
            if self.stopped:
                return
            yield JobResult(job, self.run(job))


@breaks("passes_command_unchanged")
class Bare(OneByOne):
    """It ignores the variables of a job."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        return self.plain(jobs)

    def variables(self, job: Job) -> Mapping[str, str]:
        return {}


@breaks("returns_one_result_per_job")
class Eager(OneByOne):
    """It accesses the first job even if there is none."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        assert jobs[0].threads
        return self.plain(jobs)


@breaks("stops_running_jobs")
class Killing(OneByOne):
    """It kills running jobs."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        return self.plain(jobs)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)


@breaks("starts_nothing_after_stop")
class Deaf(OneByOne):
    """It ignores an earlier call of stop."""

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        self.stopped = False
        return self.plain(jobs)


# --- loggers ------------------------------------------------------------------------------------


class Notes(Logger):
    """Append rows to a file."""

    def __init__(self, run: RunInfo) -> None:
        self.path = run.folder / "notes.txt"
        self.config = run.config

    @abstractmethod
    def log(self, row: Mapping[str, float | int]) -> None: ...

    def write(self, text: object) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.write(summary["status"])


class Lines(Notes):
    """It breaks no rule."""

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(row)


@breaks("declares_packages")
class WithVersion(Notes):
    """It names a package with its version."""

    packages = ("numpy>=1.26",)

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(row)


@breaks("accepts_any_row")
class FixedColumns(Notes):
    """It only accepts the columns of the first row."""

    writer: csv.DictWriter[str] | None = None

    def log(self, row: Mapping[str, float | int]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            if self.writer is None:
                self.writer = csv.DictWriter(file, [*row])
            csv.DictWriter(file, self.writer.fieldnames).writerow(row)


@breaks("has_one_line_note")
class Noteless(Notes):
    """Its note is None."""

    note = None  # type: ignore[assignment]

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(row)


@breaks("does_not_modify_arguments")
class Taking(Notes):
    """It removes the step from a row."""

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(f"{row.pop('step')}: {row}")  # type: ignore[attr-defined]


@breaks("accepts_every_status")
class Hopeful(Notes):
    """It reads the scores of failed runs."""

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(row)

    def finish(self, summary: Mapping[str, Any]) -> None:
        scores = summary["test"] if summary["status"] == "failed" else {"accuracy": 0}
        self.write(scores["accuracy"])


@breaks("continues_resumed_runs")
class Overwriting(Notes):
    """It overwrites its file."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run)
        self.path.write_text("", encoding="utf-8")

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(row)


@breaks("continues_resumed_runs")
class OnceOnly(Notes):
    """It rejects an existing file."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run)
        self.path.touch(exist_ok=False)

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(row)


@breaks("preserves_process_state")
class Naming(Notes):
    """It draws a name with Python's global generator."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run)
        self.name = random.choice(["brave", "calm"])

    def log(self, row: Mapping[str, float | int]) -> None:
        self.write(row)
