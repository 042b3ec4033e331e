"""Start and end child processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

GRACE = 8.0
"""Seconds that a run gets to save after SIGTERM, before it is killed."""


TICK = 0.1
"""Seconds between two looks at a process."""


TIED = Path(__file__).with_name("die_with_parent.py")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to save and end; kill it after `GRACE` seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that `JobProcess.start` started, and what it has started itself."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def by_signal(status: int) -> str:
    """The reason of an end by a signal; empty for any other status."""
    return f"killed by signal {-status}" if status < 0 else ""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
