"""Stop child processes, and count the cores for them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

GRACE = 8.0
"""Seconds for a process to save after SIGTERM, before it is killed."""
TICK = 0.1
"""Seconds between two polls of a process."""
DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")


def end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to a process, and kill it after `GRACE` seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and the other processes of the session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def by_signal(status: int) -> str:
    """Return the signal that killed a process with this exit status, else an empty string."""
    return f"killed by signal {-status}" if status < 0 else ""


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
