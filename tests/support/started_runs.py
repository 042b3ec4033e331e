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
    """Return a limit of 10 seconds, or more if the load exceeds the number of processors."""
    return 10 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Started:
    """``ssl-toolkit`` in a process, forked from a server that has already imported everything."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.log = folder / "log.txt"
        texts = [str(argument) for argument in arguments]
        self.process = kill_resume.start(texts, self.log, folder / "cache")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert self.process.exitcode is None, self.log.read_text()
            assert time.monotonic() < end, "timed out"
            time.sleep(0.02)

    def listens(self) -> bool:
        """Return True if the process already handles signals."""
        status = Path(f"/proc/{self.process.pid}/status")
        if not status.exists():  # not Linux, or already ended
            return self.log.exists()
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def signal(self, *numbers: int, pause: float = 0.3) -> float:
        """Send signals; return the seconds until the process ended."""
        start = time.monotonic()
        for number in numbers:
            if self.process.exitcode is None:
                os.kill(self.process.pid, number)
                self.process.join(pause)
        self.process.join(120)
        return time.monotonic() - start

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
