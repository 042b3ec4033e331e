"""Small programs as jobs, which resume from the files in their folder as runs do."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssl_toolkit import Job, JobResult, Launcher

START = """
import os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
def save(name, text):
    (here / f"{name}.new").write_text(str(text))
    os.replace(here / f"{name}.new", here / name)
save("pid", os.getpid())
save("parent", os.getppid())
"""

COUNTS = """
with open(here / "attempts", "a") as file:
    file.write(f"{os.getpid()}\\n")
steps = int((here / "step").read_text()) if (here / "step").exists() else 0
save("first_step", steps)
while steps < int(sys.argv[2]):
    time.sleep(0.1)
    steps += 1
    save("step", steps)
"""
"""A program that takes 0.1 s per step."""

SAVES = """
def end(*_):
    save("saved", "")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
save("ready", "")
while True:
    time.sleep(0.05)
"""

IGNORES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
save("ready", "")
time.sleep(600)
"""


def make_job(folder: Path, code: str, *arguments: object, **fields: Any) -> Job:
    """Return a job that runs Python code in which ``here`` is its folder."""
    folder.mkdir(parents=True)
    program = (sys.executable, "-S", "-c", START + code, str(folder), *map(str, arguments))
    values = {"directory": folder, "log": folder.parent / f"{folder.name}.txt"} | fields
    return Job(folder.name, program, folder, **values)


def carry_out(launcher: Launcher, jobs: list[Job]) -> dict[str, JobResult]:
    """Launch the jobs and return their results by name."""
    return {result.job.name: result for result in launcher.launch(jobs)}


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until a condition is true, for long if the machine is busy."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Run a function in another thread, and raise its errors at the end."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    for failure in failures:
        raise failure


class Stopping:
    """Stop a launcher as soon as some jobs are ready."""

    def __init__(self, launcher: Launcher, jobs: list[Job]) -> None:
        self._launcher = launcher
        self._jobs = jobs
        self._at = 0.0

    def __call__(self) -> None:
        try:
            wait_for(lambda: all((job.folder / "ready").exists() for job in self._jobs))
        finally:  # without stop, the launcher would wait forever
            self._at = time.monotonic()
            self._launcher.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the call of `stop`."""
        return time.monotonic() - self._at


def alive(folder: Path) -> bool:
    """Return True if the process of the job in a folder is alive."""
    pid = int((folder / "pid").read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):  # a zombie is not alive
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
