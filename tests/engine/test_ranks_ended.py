"""Several processes of a run that are stopped, killed and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kill_resume
import pytest
from in_process import call
from started_runs import Started, limit, rows, status_of

ARGUMENTS = ("--algo", "fixmatch", "--set", "fixmatch.unlabeled_ratio=2", "--dataset", "digits",
             "--device", "cpu", "--batch-size", "8", "--steps", "60", "--eval-every", "20",
             "--log-every", "1", "--save-every", "10", "--quiet")  # fmt: skip

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def ranks_of(parent: int) -> dict[int, int]:
    """Process numbers by rank of those that a process has started."""
    result = {}
    for entry in Path("/proc").iterdir():
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) != parent:
                continue
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, NotADirectoryError, IndexError):  # no process, or it ended just now
            continue
        own = [v for v in variables if v.startswith(b"RANK=")]
        if own:
            result[int(own[0][5:])] = int(entry.name)
    return result


def gone(processes: dict[int, int]) -> bool:
    return not any(Path("/proc", str(number)).exists() for number in processes.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    started = Started(folder, "run", *ARGUMENTS, "--devices", 2, "--output", folder / "run")
    started.process.join(300)
    started.check(0)
    return folder / "run"


def test_a_killed_process_ends_the_others_and_the_resumed_run_has_the_same_result(
    whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = Started(tmp_path, "run", *ARGUMENTS, "--devices", 2, "--output", run)
    first.wait_for(lambda: rows(run) > 12)
    ranks = ranks_of(first.process.pid)
    assert ranks.keys() == {0, 1}
    os.kill(ranks[1], signal.SIGKILL)
    began = time.monotonic()
    first.process.join(120)
    assert time.monotonic() - began < 60
    text = first.check(1)
    assert "process 1 of 2 was killed by SIGKILL; the last checkpoint is kept" in text
    assert f"ssl-toolkit resume {run}" in text
    assert gone(ranks)

    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run, elsewhere)

    second = Started(tmp_path, "resume", run, "--quiet")
    second.wait_for(lambda: rows(run) > 30)
    ranks = ranks_of(second.process.pid)
    assert len(ranks) == 2
    assert second.signal(signal.SIGTERM) < limit()
    second.check(143)
    assert status_of(run) == "interrupted"
    assert gone(ranks)

    assert call("resume", run, "--quiet").returncode == 0
    assert kill_resume.differences(whole, run) == []

    # With another number of processes: it works, and the record says so.
    result = call("resume", elsewhere, "--devices", 1)
    assert result.returncode == 0
    assert "devices: 1 instead of 2" in result.stdout
    change = json.loads((elsewhere / "record.json").read_text())["changes"][0]
    assert {"key": "devices", "before": 2, "after": 1}.items() <= change.items()
    assert status_of(elsewhere) == "completed"


@pytest.mark.slow
def test_torchrun_restarts_automatically(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
             "2", "--max-restarts", "1", "-m", "ssl_toolkit", "run", *ARGUMENTS,
             "--output", str(run)],
            stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while rows(run) <= 12:
            assert process.poll() is None, (tmp_path / "log.txt").read_text()
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(ranks_of(process.pid)[0], signal.SIGKILL)
        assert process.wait(120) == 0, (tmp_path / "log.txt").read_text()
    finally:
        process.kill()
    assert "resuming after step" in (run / "log.txt").read_text()
    assert kill_resume.differences(whole, run) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-size", "7"), "--batch-size 7: 2 processes share it in equal parts; use 6"),
        (("--batch-size", "2"), "at least 2 images in the part of each process; use 4"),
        pytest.param(
            ("--set", "model.sync_batchnorm=true"),
            "model.sync_batchnorm: torch synchronizes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("--device", "cuda:0"), "torch sees 0 CUDA device(s) here", marks=pytest.mark.slow
        ),
    ],
)
def test_settings_that_processes_cannot_share_are_one_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    run = tmp_path / "run"
    ended = call("run", *ARGUMENTS, "--devices", 2, "--output", run, *arguments)
    assert ended.returncode == 2
    assert ended.stderr.count("error:") == len(ended.stderr.splitlines()) == 1
    assert message in ended.stderr
    assert not run.exists()
