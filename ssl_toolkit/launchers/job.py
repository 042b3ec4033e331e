"""Processes of jobs, shared by all launchers.

Workers of a cluster import this module, so it doesn't import torch.
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
from typing import TYPE_CHECKING, ClassVar

from ssl_toolkit.errors import ModelError
from ssl_toolkit.locking import LOCK, hold
from ssl_toolkit.processes import children

if TYPE_CHECKING:
    from ssl_toolkit.interfaces import Job

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class JobProcess:
    """Run the command of a `Job` in a process; has plain types only, to be pickled for workers.

    A launcher with one worker per job calls `run` in the worker; one that monitors several
    processes calls `start`, and builds each `JobResult` from `failure` and `reason`.
    """

    GRACE: ClassVar[float] = children.GRACE
    """Seconds for a run to save after SIGTERM, before it is killed."""
    LOCK_TIMEOUT: ClassVar[float] = 60.0
    """Seconds that `run` waits for an earlier process of the same run to end."""

    command: tuple[str, ...]
    folder: str
    log: str
    directory: str
    environment: Mapping[str, str]

    @classmethod
    def of(cls, job: Job, **environment: str) -> JobProcess:
        """Return the process of a job.

        Args:
            job: The job.
            environment: Variables to set in addition to those of the job.
        """
        return cls(
            job.command,
            str(job.folder),
            str(job.log),
            str(job.directory),
            {**job.environment, **environment},
        )

    def start(self) -> Process:
        """Start the command and append what it prints to the log.

        On Linux the process receives SIGTERM when the calling thread ends for any reason, so that
        no run survives its launcher or the worker of a cluster.

        Raises:
            OSError: The log can't be written, or the directory doesn't exist.
        """
        log_path = Path(self.log)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        wrapper = [sys.executable, "-I", "-S", str(children.DIE_WITH_PARENT), str(os.getpid())]
        with log_path.open("ab") as log:
            # In a new session: Ctrl-C reaches only the launcher, which stops each job.
            return subprocess.Popen(
                [*(wrapper if sys.platform == "linux" else ()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                cwd=self.directory,
                start_new_session=True,
            )

    def run(self, on_start: Callable[[Process], object] | None = None) -> tuple[int, str]:
        """Start the command and wait until it ends.

        Any exception that interrupts the wait also stops the command (see `stop`). A
        `KeyboardInterrupt`, by which Ray and submitit cancel, is not raised again.

        Args:
            on_start: Called with the process after its start; optional.

        Returns:
            The exit status, and a reason if it failed outside the command.
        """
        deadline = time.monotonic() + self.LOCK_TIMEOUT
        while not self.folder_is_free() and time.monotonic() < deadline:
            time.sleep(1)
        try:
            process = self.start()
        except OSError as error:
            return self.failure(error)
        try:
            if on_start is not None:
                on_start(process)
            while process.poll() is None:  # in small steps: Ray can't interrupt a longer wait
                time.sleep(children.TICK)
        except KeyboardInterrupt:
            self.stop(process)
        finally:
            self.stop(process)
        return process.returncode, self.reason(process.returncode)

    def folder_is_free(self) -> bool:
        """Return True if no process works in the folder of the run."""
        folder = Path(self.folder)
        if not (folder / LOCK).exists():
            return True
        try:
            hold(folder).close()
        except ModelError:
            return False
        return True

    @staticmethod
    def stop(process: Process) -> None:
        """Send SIGTERM, and kill the process and its children after `GRACE` seconds."""
        children.end(process)

    @staticmethod
    def kill(process: Process) -> None:
        """Kill the process and its children."""
        children.kill(process)

    @staticmethod
    def reason(status: int) -> str:
        """Return the signal that killed a process with this exit status, else an empty string."""
        return children.by_signal(status)

    @staticmethod
    def failure(error: OSError) -> tuple[int, str]:
        """Return the exit status and reason for a command that `start` could not start.

        Args:
            error: The exception of `start`.
        """
        cause = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return 1, f"can't be started on {socket.gethostname()}: {cause}"

    @staticmethod
    @contextmanager
    def interruptible() -> Iterator[None]:
        """Let processes that are started in this block receive SIGINT.

        Ray and submitit cancel with SIGINT, which a background job of a shell and its children
        ignore.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            yield
            return
        signal.signal(signal.SIGINT, lambda number, frame: None)  # children reset it to the default
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def last_error(log: Path) -> str:
    """Return the last line of a log that starts with ``error:``, else its last line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1].removeprefix("error:").strip()
