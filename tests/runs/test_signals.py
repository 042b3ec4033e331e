"""Ctrl-C and SIGTERM, really sent: exit status, no traceback, nothing left over, and resumable."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import kill_resume
import pytest
from in_process import call
from started_runs import Started, limit, rows, status_of

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
LONG = ("--dataset", "digits", "--algo", "supervised", "--batch-size", "8", "--device", "cpu",
        "--steps", "100000", "--eval-every", "100000", "--log-every", "5",
        "--save-every", "100000")  # fmt: skip


@pytest.mark.parametrize("number", STATUS)
def test_in_training(number: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = Started(tmp_path, "run", *LONG, "--output", run)
    started.wait_for(lambda: rows(run) > 1)
    assert started.signal(number) < limit()
    text = started.check(STATUS[signal.Signals(number)])
    assert f"resume with `ssl-toolkit resume {run}`" in text
    assert status_of(run) == "interrupted"
    assert not (run / ".lock").exists()
    assert call("check-run", run).returncode == 0
    # It goes on from where it was stopped, not from the start.
    step = json.loads((run / "summary.json").read_text())["steps"]
    assert step > 5
    assert call("resume", run, "--steps", step + 2).returncode == 0
    assert status_of(run) == "completed"


def test_duplicates_within_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = Started(tmp_path, "run", *LONG, "--output", run)
    started.wait_for(lambda: rows(run) > 1)
    assert started.signal(signal.SIGINT, signal.SIGINT, pause=0.0) < limit()
    started.check(130)
    assert status_of(run) == "interrupted"
    assert call("check-run", run).returncode == 0


def make_many(folder: Path, count: int = 3000) -> Path:
    for part in ("labeled/a", "labeled/b", "unlabeled", "test/a"):
        (folder / part).mkdir(parents=True)
    small = kill_resume.make_images(folder / "small")
    image = next((small / "labeled" / "a").iterdir())
    for place in range(count):
        part = ("labeled/a", "labeled/b", "test/a")[place % 3] if place < 60 else "unlabeled"
        os.link(image, folder / part / f"{place}.png")
    return folder


@pytest.mark.parametrize("number", STATUS)
@pytest.mark.parametrize("moment", ["at once", "in the cache"])
def test_interruption_while_threads_read_images(number: int, moment: str, tmp_path: Path) -> None:
    data = make_many(tmp_path / "data")
    run, cache = tmp_path / "run", tmp_path / "cache"
    started = Started(
        tmp_path, "run", "--data", data, "--algo", "fixmatch", "--backbone", "wrn_10_1",
        "--image-size", 64, "--workers", 2, "--batch-size", 8, "--steps", 2, "--output", run,
    )  # fmt: skip
    if moment == "in the cache":
        started.wait_for(lambda: any(cache.glob("images/.*.partial")))
    else:
        started.wait_for(started.listens)
    assert started.signal(number, number) < limit()
    started.check(STATUS[signal.Signals(number)])
    assert not run.exists()
    assert not list(cache.glob("images/.*.partial"))


@pytest.mark.slow
def test_in_an_evaluation_and_in_the_final_test(tmp_path: Path) -> None:
    """Both take long here, by a network that sleeps; the run is one step long."""
    code = (
        "import sys, time, torch\n"
        "from ssl_toolkit.engine import trainer\n"
        "predict, calls = trainer.predict, iter(range(9))\n"
        "first = ['evaluation', 'test'].index(sys.argv.pop(1))\n"
        "def slow(*arguments):\n"
        "    if next(calls) < first: return predict(*arguments)\n"
        "    print('slow', flush=True)\n"
        "    while True: time.sleep(0.05)\n"
        "trainer.predict = slow\n"
        "from ssl_toolkit.commands import main\n"
        "main()\n"
    )
    short = ("run", *LONG, "--steps", "1", "--eval-every", "1", "--save-every", "1")
    for where, resumable in (("evaluation", 0), ("test", 1)):
        run = tmp_path / where
        process = subprocess.Popen(
            [sys.executable, "-c", code, where, *short, "--output", str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "slow\n":
            assert line
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        assert time.monotonic() - began < limit()
        assert (process.returncode, err) == (143, "")
        assert f"stopped by SIGTERM after step {resumable}" in out
        assert call("resume", run).returncode == 0
        assert status_of(run) == "completed"
        assert call("check-run", run).returncode == 0


def test_on_a_terminal_the_cursor_comes_back(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "ssl_toolkit", "run", *LONG, "--output", str(run)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    sent = False
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:  # the other end was closed
            break
        if not block:
            break
        shown += block
        if not sent and rows(run) > 1:
            process.send_signal(signal.SIGINT)
            sent = True
    os.close(ours)
    assert process.wait(120) == 130
    hide, show = b"\x1b[?25l", b"\x1b[?25h"
    assert hide in shown
    assert shown.rfind(show) > shown.rfind(hide)
    assert b"Traceback" not in shown


def test_other_commands_end_by_signals_too(tmp_path: Path) -> None:
    data = make_many(tmp_path / "data")
    started = Started(tmp_path, "inspect", data, "--workers", "2")
    started.wait_for(started.listens)
    assert started.signal(signal.SIGTERM) < limit()
    started.check(143)


def test_what_was_printed_is_not_lost_if_a_thread_does_not_end() -> None:
    code = (
        "import threading, time\n"
        "from ssl_toolkit import interrupts\n"
        "print('stopped')\n"
        "threading.Thread(target=time.sleep, args=[60]).start()\n"
        "interrupts.EXIT_PATIENCE = 0.1\n"
        "interrupts.end_soon(143)\n"
    )
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, env=buffered
    )
    assert (done.returncode, done.stdout) == (143, "stopped\n")
