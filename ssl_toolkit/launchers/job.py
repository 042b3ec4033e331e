"""The command of a job as a process, the same way under every launcher.

Workers of a cluster import this module, so it needs no torch.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ssl_toolkit.errors import ModelError
from ssl_toolkit.locking import LOCK, hold
from ssl_toolkit.processes.children import TICK, TIED, by_signal, end

if TYPE_CHECKING:
    from ssl_toolkit.interfaces import Job


PATIENCE = 60.0
"""Seconds that a run which is started again waits for the end of its predecessor."""


@dataclass(frozen=True)
class JobProcess:
    """What a worker needs of a `Job`, in plain types."""

    command: tuple[str, ...]
    folder: str
    log: str
    directory: str
    environment: Mapping[str, str]

    @classmethod
    def of(cls, job: Job, **environment: str) -> JobProcess:
        """The work of a job.

        Args:
            job: to be carried out.
            environment: further variables.
        """
        return cls(
            job.command,
            str(job.folder),
            str(job.log),
            str(job.directory),
            {**job.environment, **environment},
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command; what it prints is appended to the log.

        On Linux it gets SIGTERM when the thread that calls this ends, however it ends: no run
        outlives its launcher, or the worker of a cluster.

        Raises:
            OSError: the log can't be written, or the directory isn't there.
        """
        log_path = Path(self.log)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        tie = [sys.executable, "-I", "-S", str(TIED), str(os.getpid())]
        with log_path.open("ab") as log:
            # A session of its own: Ctrl-C reaches the launcher alone, which asks each to end.
            return subprocess.Popen(
                [*(tie if sys.platform == "linux" else ()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                cwd=self.directory,
                start_new_session=True,
            )

    def carry_out(
        self, started: Callable[[subprocess.Popen[bytes]], object] = lambda process: None
    ) -> tuple[int, str]:
        """Start the command and wait for its end; for a worker that does nothing beside.

        Whatever ends the waiting ends the command too, which gets `GRACE` seconds to save. A
        `KeyboardInterrupt`, with which Ray and submitit cancel, is not passed on.

        Args:
            started: called with the process.

        Returns:
            Exit status, and a reason where it failed outside the command.
        """
        deadline = time.monotonic() + PATIENCE
        while not is_free(Path(self.folder)) and time.monotonic() < deadline:
            time.sleep(1)
        try:
            process = self.start()
        except OSError as error:
            return unstarted(error)
        try:
            started(process)
            while process.poll() is None:  # in small steps: Ray's cancellation breaks no wait
                time.sleep(TICK)
        except KeyboardInterrupt:
            end(process)
        finally:
            end(process)
        return process.returncode, by_signal(process.returncode)


@contextmanager
def interruptible_children() -> Iterator[None]:
    """Let processes that are started inside hear SIGINT, with which Ray and submitit cancel.

    What a shell runs in the background ignores SIGINT, and so would all that it starts.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: None)  # a started program has the default
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def unstarted(error: OSError) -> tuple[int, str]:
    """Status and reason of a command that couldn't be started."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return 1, f"can't be started on {socket.gethostname()}: {what}"


def last_error(log: Path) -> str:
    """The last line of a log that tells of an error, else its last line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1].removeprefix("error:").strip()


def is_free(folder: Path) -> bool:
    """Whether no process works in the folder of a run."""
    if not (folder / LOCK).exists():
        return True
    try:
        hold(folder).release()
    except ModelError:
        return False
    return True
