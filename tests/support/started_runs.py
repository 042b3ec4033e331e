"""Run commands as processes and send them signals."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kill_resume


def limit() -> float:
    """Ten seconds, on a machine that is not busy with more than it has processors for."""
    return 10 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Started:
    """``ssl-toolkit`` in a process that is forked from a server with everything imported."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.log = folder / "log.txt"
        given = [str(argument) for argument in arguments]
        self.process = kill_resume.start(given, self.log, folder / "cache")

    def wait_for(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not what():
            assert self.process.exitcode is None, self.log.read_text()
            assert time.monotonic() < end, "it took too long"
            time.sleep(0.02)

    def listens(self) -> bool:
        """Whether it has begun to handle signals itself."""
        status = Path(f"/proc/{self.process.pid}/status")
        if not status.exists():  # not Linux, or over already
            return self.log.exists()
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def signal(self, *numbers: int, pause: float = 0.3) -> float:
        """Send signals; the seconds until the process ended."""
        began = time.monotonic()
        for number in numbers:
            if self.process.exitcode is None:
                os.kill(self.process.pid, number)
                self.process.join(pause)
        self.process.join(120)
        return time.monotonic() - began

    def check(self, status: int) -> str:
        text = self.log.read_text()
        assert self.process.exitcode == status, text
        assert "Traceback" not in text
        assert "Error" not in text
        return text


def status_of(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())["status"]


def rows(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0
