"""Rules on launchers: they start small programs in temporary folders."""

from __future__ import annotations

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
from ssl_toolkit.testing.rules import require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import listed

PATIENCE = 120.0
"""Seconds in which a program has to be started."""
GRACE = 10.0
"""Seconds in which a launcher that was stopped has to end."""

WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1], 'done').write_text('yes')"
FAILS = "import sys; sys.exit(3)"
TELLS = (
    "import json, os, pathlib, sys; pathlib.Path(sys.argv[1], 'reported').write_text(json.dumps("
    "[os.getcwd(), os.environ.get('CONTRACT'), os.environ.get('HOME'), sys.argv[2:]])); "
    "print('to the log'); print('and this', file=sys.stderr)"
)
WAITS = """
import os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
def end(*_):
    (here / 'saved').write_text('yes')
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
(here / 'new').write_text(str(os.getpid()))
os.replace(here / 'new', here / 'pid')
while True:
    time.sleep(0.05)
"""


@rule(
    "launchers",
    why="`compare` waits for the result of each run.",
    cause="a job is dropped, yielded twice, or replaced by a copy",
)
def every_job_ends_once(subject: Subject) -> None:
    """Each job is run and yielded once, unchanged, with status 0."""
    with _jobs([WRITES] * 3) as jobs:
        ended = _carry_out(subject, jobs)
        ended_jobs = [end.job for end in ended]
        missing = [job.name for job in jobs if job not in ended_jobs]
        require(not missing, f"{listed(missing)} never ended")
        require(len(ended_jobs) == len(jobs), f"{len(ended_jobs)} results for {len(jobs)} jobs")
        require(all(end.status == 0 for end in ended), f"statuses are {_statuses(ended)}")
        undone = [job.name for job in jobs if not (job.folder / "done").exists()]
        require(not undone, f"{listed(undone)} ended, but were not carried out")


@rule(
    "launchers",
    why="one failed run must not affect the others.",
    cause="an exception of a job ends the loop",
)
def a_failure_costs_itself_alone(subject: Subject) -> None:
    """A failed job is reported with its own exit status, and the others are run."""
    with _jobs([WRITES, FAILS, WRITES]) as jobs:
        statuses = _statuses(_carry_out(subject, jobs))
        expected = {jobs[0].name: 0, jobs[1].name: 3, jobs[2].name: 0}
        require(statuses == expected, f"statuses are {statuses}, not {expected}")


@rule(
    "launchers",
    why="a machine without the program, or a full disk, must not affect the other runs.",
    cause="the OSError of a program that cannot be started is not caught",
)
def what_cannot_start_is_told(subject: Subject) -> None:
    """A job whose program is missing ends with a status other than 0; the others continue."""
    with _jobs([WRITES, WRITES]) as jobs:
        lost = Job("lost", (str(jobs[0].folder / "no-program"),), jobs[0].folder, jobs[0].log)
        ended = _carry_out(subject, [lost, jobs[1]])
        statuses = _statuses(ended)
        require(statuses.get("lost", 0) != 0, f"statuses are {statuses}")
        require(statuses.get(jobs[1].name) == 0, f"statuses are {statuses}")
        lines = [end.reason for end in ended if "\n" in end.reason]
        require(not lines, f"a reason has several lines: {lines}")


@rule(
    "launchers",
    why="paths with spaces, and relative paths in a configuration, must work.",
    cause="a shell in between, or a command started elsewhere",
)
def commands_arrive_as_given(subject: Subject) -> None:
    """Arguments, directory and variables are those of the job; its output is in its log."""
    given = ["a b", "$HOME", "'quoted'", '"', "*", ""]
    with _jobs([TELLS], *given, environment={"CONTRACT": "kept"}) as (job,):
        job.log.write_text("before\n", encoding="utf-8")
        ended = _carry_out(subject, [job])
        require(_statuses(ended) == {job.name: 0}, f"statuses are {_statuses(ended)}")
        import json

        reported = json.loads((job.folder / "reported").read_text(encoding="utf-8"))
        directory, variable, home, arguments = reported
        require(arguments == given, f"arguments {given} became {arguments}")
        same = Path(directory).resolve() == job.directory.resolve()
        require(same, f"it was started in {directory}, not in {job.directory}")
        require(variable == "kept", f"a variable of the job is {variable!r}")
        require(home == os.environ.get("HOME"), "variables of this process are missing")
        log = job.log.read_text(encoding="utf-8")
        wrote = log.startswith("before\n") and "to the log" in log and "and this" in log
        require(wrote, f"the log is {log!r}; output and errors are appended to it")


@rule(
    "launchers",
    why="a comparison whose runs are all finished has nothing to start.",
    cause="the first job is accessed although there is none",
)
def nothing_to_do_is_fine(subject: Subject) -> None:
    """Without jobs, there are no results."""
    ended = _carry_out(subject, [])
    require(ended == [], f"without jobs, {ended} ended")


@rule(
    "launchers",
    why="Ctrl-C must save running jobs, and leave no process behind.",
    cause="stop only sets a flag, kills at once, or launch waits for all jobs",
)
def stop_saves_and_ends(subject: Subject) -> None:
    """After `stop`, running jobs are asked to save, none is started, and launch returns."""
    with _jobs([WAITS, WAITS, WAITS]) as jobs:
        launcher = _make(subject)
        ended: list[JobResult] = []
        failures: list[BaseException] = []

        def launch() -> None:
            try:
                ended.extend(launcher.launch(jobs))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        _wait(lambda: any(_running(jobs)) or not thread.is_alive())
        time.sleep(0.5)  # for the others that run beside it
        running = _running(jobs)
        launcher.stop()
        stopped = time.monotonic()
        thread.join(GRACE + 5)
        took = time.monotonic() - stopped
        for failure in failures:
            raise failure
        left = [job.name for job in jobs if _is_alive(job)]
        require(not thread.is_alive() and took < GRACE, f"launch goes on {took:.0f} s after stop")
        require(not left, f"{listed(left)} still run after launch has returned")
        unsaved = [job.name for job in running if not (job.folder / "saved").exists()]
        require(not unsaved, f"{listed(unsaved)} were not asked to save")
        started = {job.name for job in _running(jobs)} - {job.name for job in running}
        require(not started, f"{listed(sorted(started))} were started after stop")


@rule(
    "launchers",
    why="a signal can arrive before the first run is started.",
    cause="launch ignores an earlier call of stop",
)
def stop_before_launch_starts_nothing(subject: Subject) -> None:
    """If stopped before `launch`, it starts nothing."""
    with _jobs([WRITES]) as jobs:
        launcher = _make(subject)
        launcher.stop()
        [*launcher.launch(jobs)]
        require(not (jobs[0].folder / "done").exists(), "a job was started after stop")


def _make(subject: Subject) -> Launcher:
    launcher: Launcher = subject.plugin(subject.options())
    return launcher


def _carry_out(subject: Subject, jobs: Sequence[Job]) -> list[JobResult]:
    return [*_make(subject).launch(jobs)]


def _statuses(ended: Sequence[JobResult]) -> dict[str, int]:
    return {end.job.name: end.status for end in ended}


@contextmanager
def _jobs(codes: Sequence[str], *arguments: str, **fields: Any) -> Iterator[list[Job]]:
    """Jobs that run Python code, whose first argument is their folder."""
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
            for job in jobs:  # whatever the launcher left
                if _is_alive(job):
                    os.kill(_process(job), 9)


def _running(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if (job.folder / "pid").exists()]


def _process(job: Job) -> int:
    return int((job.folder / "pid").read_text(encoding="utf-8"))


def _is_alive(job: Job) -> bool:
    if not (job.folder / "pid").exists():
        return False
    process = _process(job)
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return state.split()[0] != "Z"


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
