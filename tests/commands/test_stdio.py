"""Output whose reader has left, whose disk is full, or whose descriptor is closed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import pytest

from ssl_toolkit.commands import main
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.console import Console
from ssl_toolkit.stdio import lost, protected
from ssl_toolkit.tabular import write_rows

TINY = ("--algo", "supervised", "--dataset", "digits", "--backbone", "wrn_10_1", "--image-size",
        "8", "--batch-size", "4", "--steps", "6", "--eval-every", "1", "--device", "cpu",
        "--seed", "0")  # fmt: skip


def without_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full() -> int:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    return os.open("/dev/full", os.O_WRONLY)


@pytest.fixture(params=[without_reader, full])
def broken(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    number = request.param()
    yield protected(None, number)
    os.close(number)


def call(stream: TextIO, *arguments: object) -> tuple[int, str]:
    """Run the command line with this standard output: the exit status and what stderr says."""
    err = StringIO()
    with redirect_stdout(stream), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code, err.getvalue()


def bash(line: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a pipe; the exit status of its first part, and what the last one printed."""
    given = ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"]
    return subprocess.run(given, capture_output=True, text=True, timeout=60, check=False, **more)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("how", ["| true", "> /dev/full", ">&-"])
def test_nothing_that_is_written_fails(how: str, number: int) -> None:
    code = (
        "import os, subprocess, sys, time; from ssl_toolkit.stdio import protect; protect()\n"
        f"stream = (sys.stdout, sys.stderr)[{number} - 1]; time.sleep(0.2)\n"
        "for _ in range(9): print('x' * 9999, file=stream)\n"
        "stream.flush()\n"
        "assert os.open(os.devnull, os.O_RDONLY) > 2\n"
        f"subprocess.run(['sh', '-c', 'echo x >&{number}'], check=True); sys.exit(7)"
    )
    if how == "> /dev/full":
        os.close(full())
    swapped = "2>&1 >/dev/null" if number == 2 else ""
    to = f"{swapped} | true" if how == "| true" else f"{number}{how}"
    done = bash(f"{shlex.join([sys.executable, '-c', code])} {to}")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_a_pipe_that_does_not_block_loses_nothing() -> None:
    code = (
        "import os, sys; from ssl_toolkit.stdio import lost, protect; protect()\n"
        "os.set_blocking(1, False)\n"
        "print('ä\\n' * 99999, end=''); print(lost(sys.stdout))"
    )
    process = subprocess.Popen([sys.executable, "-X", "utf8", "-c", code], stdout=subprocess.PIPE)
    time.sleep(0.5)  # meanwhile the pipe is full
    assert process.communicate()[0].decode() == "ä\n" * 99999 + "None\n"


def test_a_run_survives_closed_output(broken: TextIO, tmp_path: Path) -> None:
    assert call(broken, "run", *TINY, "--output", tmp_path / "run") == (0, "")
    assert (
        json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["status"] == "completed"
    )
    log = (tmp_path / "run" / "log.txt").read_text("utf-8")
    assert [f"\n{step:4}  " in log for step in range(1, 7)] == [True] * 6
    assert "\ntest accuracy: " in log


def test_a_process_of_a_run_survives_closed_output_too(tmp_path: Path) -> None:
    tree = load_config(flags={"output": "run", "eval_every": 1, "steps": 6}).tree()
    order = {"function": "train", "options": {"config": tree}, "console": {}}
    (tmp_path / "order.json").write_text(json.dumps(order))
    command = [sys.executable, "-m", "ssl_toolkit.runs.worker_main", "order.json"]
    done = bash(f"{shlex.join(command)} | head -1", cwd=tmp_path, env=os.environ | {"RANK": "0"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "run folder: run\n", "")
    assert "\n   6  " in (tmp_path / "run" / "log.txt").read_text("utf-8")


@pytest.mark.parametrize("how", [">&-", "2>&-", "| true"])
def test_the_command_line_does_too(how: str) -> None:
    done = bash(f"{shlex.join([sys.executable, '-m', 'ssl_toolkit', 'show', 'weak'])} {how}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_comparison_starts_every_run(tmp_path: Path) -> None:
    number = without_reader()
    given = ("--algos", "supervised", "--seeds", "0,1", *TINY[2:-2], "--jobs", "2")
    folder = tmp_path / "comparison"
    assert call(protected(None, number), "compare", *given, "--output", folder) == (0, "")
    os.close(number)
    result = sorted(path.parent.name for path in folder.glob("runs/*/*/model"))
    assert len(result) == 2
    assert (folder / "report.html").exists()


@pytest.mark.parametrize(
    "given", [["list"], ["run", "--dry-run", *TINY], ["--help"], ["show", "weak"]]
)
def test_printed_output_fails_on_a_full_disk(given: list[str]) -> None:
    for make, expected in (
        (full, (1, "error: standard output: No space left on device\n")),
        (without_reader, (0, "")),
    ):
        number = make()
        assert call(protected(None, number), *given) == expected
        os.close(number)


def test_an_error_keeps_its_exit_status_without_a_reader(broken: TextIO) -> None:
    with redirect_stderr(broken), pytest.raises(SystemExit) as ended:
        main(["show", "no such plugin"])
    assert ended.value.code == 2
    broken.flush()
    assert lost(broken)


def test_unused_rows_are_not_rendered(broken: TextIO) -> None:
    made = 0

    def rows() -> Iterator[list[str]]:
        nonlocal made
        for _ in range(10_000):
            made += 1
            yield ["an image", "a class"]

    full = os.fstat(broken.fileno()).st_mode & 0o170000 != 0o010000  # no pipe
    refused = pytest.raises(OSError, match="No space") if full else contextlib.nullcontext()
    with redirect_stdout(broken), refused:
        write_rows(None, ["path", "class"], rows())
    assert 0 < made < 2_000


def test_a_run_from_python_survives_closed_output(tmp_path: Path) -> None:
    number = without_reader()
    with os.fdopen(number, "w") as stream, redirect_stdout(stream):
        console = Console()
        console.log_to(tmp_path / "log.txt")
        for step in range(3):
            console.say(f"line {step}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    assert (tmp_path / "log.txt").read_text() == "line 0\nline 1\nline 2\n"
