"""Jobs that stand for runs: small programs that go on with what they find in their folder."""

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
def keep(name, text):
    (here / f"{name}.new").write_text(str(text))
    os.replace(here / f"{name}.new", here / name)
keep("pid", os.getpid())
keep("parent", os.getppid())
"""

COUNTS = """
with open(here / "attempts", "a") as file:
    file.write(f"{os.getpid()}\\n")
steps = int((here / "step").read_text()) if (here / "step").exists() else 0
keep("began", steps)
while steps < int(sys.argv[2]):
    time.sleep(0.1)
    steps += 1
    keep("step", steps)
"""
"""Takes 0.1 s a step."""

SAVES = """
def end(*_):
    keep("saved", "")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
keep("ready", "")
while True:
    time.sleep(0.05)
"""

IGNORES = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
keep("ready", "")
time.sleep(600)
"""


def make_job(folder: Path, code: str, *arguments: object, **fields: Any) -> Job:
    """A job that runs Python code in which ``here`` is its folder."""
    folder.mkdir(parents=True)
    program = (sys.executable, "-S", "-c", START + code, str(folder), *map(str, arguments))
    given = {"directory": folder, "log": folder.parent / f"{folder.name}.txt"} | fields
    return Job(folder.name, program, folder, **given)


def carry_out(launcher: Launcher, jobs: list[Job]) -> dict[str, JobResult]:
    """Launch, and how each job ended, by name."""
    return {ended.job.name: ended for ended in launcher.launch(jobs)}


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait patiently: the machine may be busy."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread; what fails there fails here."""
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
    """Stops a launcher as soon as some jobs are ready."""

    def __init__(self, launcher: Launcher, jobs: list[Job]) -> None:
        self._launcher = launcher
        self._jobs = jobs
        self._at = 0.0

    def __call__(self) -> None:
        try:
            wait_for(lambda: all((job.folder / "ready").exists() for job in self._jobs))
        finally:  # a launcher that nobody stops would wait for ever
            self._at = time.monotonic()
            self._launcher.stop()

    @property
    def seconds(self) -> float:
        """Since the launcher was told to stop."""
        return time.monotonic() - self._at


def alive(folder: Path) -> bool:
    """Whether the process of the job in a folder is there."""
    pid = int((folder / "pid").read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):  # a zombie has ended
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
