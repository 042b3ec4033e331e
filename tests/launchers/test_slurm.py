"""The Slurm launcher: through submitit's local executor, and stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import COUNTS, SAVES, Stopping, alive, carry_out, make_job, meanwhile, wait_for
from ssl_toolkit_slurm.launcher import Slurm

from ssl_toolkit import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Slurm runs on Linux")

SBATCH = """
cp "$1" "$CLUSTER/script"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
for n in $(seq 0 "$last"); do
    export SLURM_JOB_ID=9$n SLURM_ARRAY_JOB_ID=77 SLURM_ARRAY_TASK_ID=$n SLURM_PROCID=0
    setsid sh "$CLUSTER/script" > "$CLUSTER/output-$n" 2>&1 < /dev/null &
    echo $! > "$CLUSTER/77_$n"
done
echo "Submitted batch job 77"
"""
SRUN = """
while :; do
    case "$1" in
        --unbuffered) shift ;;
        --output)
            : > "$(echo "$2" | sed "s/%A/77/; s/%a/$SLURM_ARRAY_TASK_ID/; s/%t/0/")"
            shift 2 ;;
        --error) shift 2 ;;
        *) break ;;
    esac
done
exec "$@"
"""
SCANCEL = """
kill -TERM -$(cat "$CLUSTER/$1")
sleep 0.3
kill -KILL -$(cat "$CLUSTER/$1")
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of the names of Slurm's, which run an array's jobs here; the folder of its state."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    programs = {"sbatch": SBATCH, "srun": SRUN, "scancel": SCANCEL, "sacct": "echo JobID\n"}
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("CLUSTER", str(folder))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def slurm(**options: Any) -> Slurm:
    return Slurm(Slurm.Config(**options))


def test_each_run_is_a_job_and_one_that_fails_does_not_affect_the_others(tmp_path: Path) -> None:
    jobs = [
        make_job(tmp_path / "good", "print('hello')"),
        make_job(tmp_path / "bad", "sys.exit(3)"),
        make_job(tmp_path / "nowhere", "", directory=tmp_path / "missing"),
    ]
    ended = carry_out(slurm(cluster="local"), jobs)
    assert {name: end.status for name, end in ended.items()} == {"good": 0, "bad": 3, "nowhere": 1}
    assert f"{tmp_path / 'missing'}: No such file or directory" in ended["nowhere"].reason
    assert (tmp_path / "good.txt").read_text() == "hello\n"


def test_a_run_at_its_time_limit_continues_in_a_new_job(tmp_path: Path) -> None:
    job = make_job(tmp_path / "u", COUNTS, 30)

    def time_is_up() -> None:
        wait_for(lambda: (job.folder / "step").exists())
        os.kill(int((job.folder / "parent").read_text()), signal.SIGUSR2)

    with meanwhile(time_is_up):
        ended = carry_out(slurm(cluster="local"), [job])
    assert ended["u"].status == 0, ended["u"].reason
    assert len((job.folder / "attempts").read_text().split()) == 2
    assert int((job.folder / "first_step").read_text()) > 0
    assert (job.folder / "step").read_text() == "30"


@pytest.mark.slow
def test_a_killed_job_is_reported(tmp_path: Path) -> None:
    job = make_job(tmp_path / "u", SAVES)

    def kill_job() -> None:
        wait_for((job.folder / "ready").exists)
        os.kill(int((job.folder / "parent").read_text()), signal.SIGKILL)

    with meanwhile(kill_job):
        ended = carry_out(slurm(cluster="local"), [job])
    assert ended["u"].status == 1
    assert ended["u"].reason.startswith("job ")
    assert str(tmp_path / "slurm") in ended["u"].reason
    wait_for(lambda: not alive(job.folder), 10)


def test_stop_cancels_the_jobs_of_a_background_job_and_leaves_no_process(tmp_path: Path) -> None:
    jobs = [make_job(tmp_path / f"u{n}", SAVES) for n in range(2)]
    launcher = slurm(cluster="local")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    try:
        with meanwhile(stopping := Stopping(launcher, jobs)):
            ended = carry_out(launcher, jobs)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopping.seconds < 10
    assert {name: end.status for name, end in ended.items()} == {"u0": 143, "u1": 143}
    assert all((job.folder / "saved").exists() and not alive(job.folder) for job in jobs)


def test_without_slurm_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"srun not found.*launcher_options\.cluster"):
        slurm()


def test_a_job_array_is_submitted_with_the_options(tmp_path: Path, cluster: Path) -> None:
    jobs = [make_job(tmp_path / f"u{n}", "print('hello')", threads=2) for n in range(2)]
    options = {
        "partition": "gpu",
        "account": "lab",
        "minutes": 90,
        "memory_gb": 4,
        "jobs": 1,
        "setup": ["export FROM_SETUP=1"],
        "sbatch": {"constraint": "a100"},
    }
    ended = carry_out(slurm(**options), jobs)
    assert {name: end.status for name, end in ended.items()} == {"u0": 0, "u1": 0}
    assert (tmp_path / "u1.txt").read_text() == "hello\n"
    script = (cluster / "script").read_text().splitlines()
    wanted = "account=lab array=0-1%1 constraint=a100 cpus-per-task=2 mem=4GB partition=gpu time=90"
    assert {f"#SBATCH --{flag}" for flag in (*wanted.split(), "requeue")} <= {*script}
    assert "export FROM_SETUP=1" in script


def test_stop_cancels_an_array(tmp_path: Path, cluster: Path) -> None:
    jobs = [make_job(tmp_path / f"u{n}", SAVES) for n in range(2)]
    launcher = slurm()
    with meanwhile(stopping := Stopping(launcher, jobs)):
        ended = carry_out(launcher, jobs)
    assert stopping.seconds < 10
    assert {name: end.status for name, end in ended.items()} == {"u0": 143, "u1": 143}
    for job in jobs:
        wait_for(lambda job=job: not alive(job.folder), 10)
        assert (job.folder / "saved").exists()
