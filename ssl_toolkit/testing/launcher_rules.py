"""Rules for launchers, checked with small programs in temporary folders."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssl_toolkit.interfaces import Job, JobResult, Launcher
from ssl_toolkit.testing.assertions import listed
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject

START_TIMEOUT = 120.0
"""Seconds until the first program must have started."""
STOP_TIMEOUT = 10.0
"""Seconds until a launcher must return after `stop`."""

SUCCEED = "import pathlib, sys; pathlib.Path(sys.argv[1], 'done').write_text('yes')"
FAIL = "import sys; sys.exit(3)"
REPORT = (
    "import json, os, pathlib, sys; pathlib.Path(sys.argv[1], 'report').write_text(json.dumps("
    "[sys.argv[2:], os.environ.get('CONTRACT'), os.environ.get('HOME'), "
    "os.path.samefile(os.getcwd(), sys.argv[1])])); "
    "print('output'); print('errors', file=sys.stderr)"
)
SLEEP = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(*_):
    (folder / 'saved').write_text('yes')
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
(folder / 'new').write_text(str(os.getpid()))
os.replace(folder / 'new', folder / 'pid')
while True:
    time.sleep(0.05)
"""


def returns_one_result_per_job(subject: Subject) -> None:
    """Each job runs once and yields one result with status 0; without jobs there are no results.

    Why: `compare` waits for the result of each run.
    Cause: a job that is dropped, yielded twice or replaced by a copy.
    """
    require(_launch(subject, []) == [], "without jobs, there are results")
    with _jobs([SUCCEED] * 3) as jobs:
        results = _launch(subject, jobs)
        missing = [job.name for job in jobs if job not in [result.job for result in results]]
        require(not missing, f"{listed(missing)} have no result")
        require(len(results) == len(jobs), f"{len(results)} results for {len(jobs)} jobs")
        require(not any(_statuses(results).values()), f"statuses are {_statuses(results)}")
        missing = [job.name for job in jobs if not (job.folder / "done").exists()]
        require(not missing, f"{listed(missing)} have a result, but didn't run")


def isolates_failed_jobs(subject: Subject) -> None:
    """A failed job yields its exit status, and the others run.

    Why: a failed run must not affect the others.
    Cause: the exception of one job ends the loop.
    """
    with _jobs([SUCCEED, FAIL, SUCCEED]) as jobs:
        statuses = _statuses(_launch(subject, jobs))
        expected = {jobs[0].name: 0, jobs[1].name: 3, jobs[2].name: 0}
        require(statuses == expected, f"statuses are {statuses}, not {expected}")


def reports_start_failures(subject: Subject) -> None:
    """A job whose program is not found yields a nonzero status, and the others run.

    Why: a missing program or a full disk must not affect the other runs.
    Cause: an uncaught OSError.
    """
    with _jobs([SUCCEED, SUCCEED]) as jobs:
        program = str(jobs[0].folder / "no-program")
        invalid = Job("invalid", (program,), jobs[0].folder, jobs[0].log)
        results = _launch(subject, [invalid, jobs[1]])
        statuses = _statuses(results)
        valid = statuses.get("invalid", 0) != 0 and statuses.get(jobs[1].name) == 0
        require(valid, f"statuses are {statuses}")
        lines = [result.reason for result in results if "\n" in result.reason]
        require(not lines, f"a reason has several lines: {lines}")


def passes_command_unchanged(subject: Subject) -> None:
    """A job gets its arguments, directory and variables; its output is appended to its log.

    Why: paths may be relative or contain spaces.
    Cause: a shell, or another working directory.
    """
    arguments = ["a b", "$HOME", "'quoted'", '"', "*", ""]
    with _jobs([REPORT], *arguments, environment={"CONTRACT": "value"}) as (job,):
        job.log.write_text("before\n", encoding="utf-8")
        statuses = _statuses(_launch(subject, [job]))
        require(statuses == {job.name: 0}, f"statuses are {statuses}")
        report = json.loads((job.folder / "report").read_text(encoding="utf-8"))
        require(report[0] == arguments, f"arguments {arguments} became {report[0]}")
        require(report[1] == "value", f"a variable of the job is {report[1]!r}")
        require(report[2] == os.environ.get("HOME"), "variables of this process are missing")
        require(report[3], f"it didn't start in {job.directory}")
        log = job.log.read_text(encoding="utf-8")
        complete = log.startswith("before\n") and "output" in log and "errors" in log
        require(complete, f"output and errors are not appended to the log, which is {log!r}")


def stops_running_jobs(subject: Subject) -> None:
    """`stop` lets running jobs save, starts no others and makes `launch` return.

    Why: Ctrl-C must save running jobs and leave no processes.
    Cause: stop only sets a flag or kills immediately, or launch waits for all jobs.
    """
    with _jobs([SLEEP] * 3) as jobs:
        launcher = _build(subject)
        results: list[JobResult | BaseException] = []

        def launch() -> None:
            try:
                results.extend(launcher.launch(jobs))
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        deadline = time.monotonic() + START_TIMEOUT
        while not _started(jobs) and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # for parallel jobs
        running = _started(jobs)
        launcher.stop()
        thread.join(STOP_TIMEOUT)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        require(not thread.is_alive(), f"launch doesn't return {STOP_TIMEOUT:g} s after stop")
        alive = [job.name for job in jobs if _is_alive(job)]
        require(not alive, f"{listed(alive)} still run after launch has returned")
        unsaved = [job.name for job in running if not (job.folder / "saved").exists()]
        require(not unsaved, f"{listed(unsaved)} could not save")
        late = [job.name for job in _started(jobs) if job not in running]
        require(not late, f"{listed(late)} started after stop")


def starts_nothing_after_stop(subject: Subject) -> None:
    """If `stop` is called before `launch`, no job starts.

    Why: a signal may arrive before the first job starts.
    Cause: launch ignores an earlier call of stop.
    """
    with _jobs([SUCCEED]) as jobs:
        launcher = _build(subject)
        launcher.stop()
        [*launcher.launch(jobs)]
        require(not (jobs[0].folder / "done").exists(), "a job started after stop")


def _build(subject: Subject) -> Launcher:
    launcher: Launcher = subject.plugin(subject.options())
    return launcher


def _launch(subject: Subject, jobs: Sequence[Job]) -> list[JobResult]:
    return [*_build(subject).launch(jobs)]


def _statuses(results: Sequence[JobResult]) -> dict[str, int]:
    return {result.job.name: result.status for result in results}


@contextmanager
def _jobs(codes: Sequence[str], *arguments: str, **fields: Any) -> Iterator[list[Job]]:
    """Yield jobs that run Python code, with their folder as the first argument."""
    jobs = []
    with tempfile.TemporaryDirectory() as name:
        for number, code in enumerate(codes):
            folder = Path(name).resolve() / f"job {number}"
            folder.mkdir()
            command = (sys.executable, "-S", "-c", code, str(folder), *arguments)
            log = folder.parent / f"{number}.txt"
            jobs.append(Job(f"u{number}", command, folder, log, folder, **fields))
        try:
            yield jobs
        finally:
            for job in filter(_is_alive, jobs):
                os.kill(_pid(job), 9)


def _started(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if (job.folder / "pid").exists()]


def _pid(job: Job) -> int:
    return int((job.folder / "pid").read_text(encoding="utf-8"))


def _is_alive(job: Job) -> bool:
    try:
        os.kill(_pid(job), 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    status = Path(f"/proc/{_pid(job)}/stat")  # a zombie on Linux is not alive
    return not status.exists() or status.read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
