"""Launchers that run jobs on this machine, and what all launchers share."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_jobs import (
    IGNORES,
    SAVES,
    Stopping,
    alive,
    carry_out,
    make_job,
    meanwhile,
    wait_for,
)

from ssl_toolkit import Job, PluginError, registry
from ssl_toolkit.launchers.job import JobProcess
from ssl_toolkit.launchers.local import Local
from ssl_toolkit.locking import hold

TIMED = "save('times', time.time()); time.sleep(0.4); save('end', time.time())"


def local(jobs: int = 2) -> Local:
    return Local(Local.Config(jobs=jobs))


def numbers(job: Job, name: str) -> float:
    return float((job.folder / name).read_text())


def test_no_more_than_the_requested_number_of_jobs_run_at_once(tmp_path: Path) -> None:
    jobs = [make_job(tmp_path / f"u{n}", TIMED) for n in range(5)]
    ended = carry_out(local(2), jobs)
    assert {name: end.status for name, end in ended.items()} == {u.name: 0 for u in jobs}
    begun = [numbers(job, "times") for job in jobs]
    running = [
        sum(numbers(u, "times") <= start < numbers(u, "end") for u in jobs) for start in begun
    ]
    assert max(running) == 2


def test_a_failure_does_not_affect_the_others(tmp_path: Path) -> None:
    jobs = [
        make_job(tmp_path / "good", "print('hello')"),
        make_job(tmp_path / "bad", "sys.exit(3)"),
        make_job(tmp_path / "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        make_job(tmp_path / "nowhere", "", directory=tmp_path / "missing"),
        make_job(tmp_path / "last", "pass"),
    ]
    absent = Job("absent", (str(tmp_path / "no-program"),), tmp_path, tmp_path / "absent.txt")
    ended = carry_out(local(1), [absent, *jobs])
    assert {name: end.status for name, end in ended.items()} == {
        "absent": 1,
        "good": 0,
        "bad": 3,
        "killed": -9,
        "nowhere": 1,
        "last": 0,
    }
    assert ended["bad"].reason == ""
    assert ended["killed"].reason == "killed by signal 9"
    assert f"{tmp_path / 'missing'}: No such file or directory" in ended["nowhere"].reason
    assert (tmp_path / "good.txt").read_text() == "hello\n"
    assert "no-program: can't be started" in (tmp_path / "absent.txt").read_text()


def test_environment_directory_and_log_are_those_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("KEPT", "yes")
    code = "print(os.environ['OMP_NUM_THREADS'], os.environ['KEPT'], os.getcwd())"
    job = make_job(tmp_path / "u", code, environment={"OMP_NUM_THREADS": "3"})
    job.log.write_text("earlier\n")
    carry_out(local(), [job])
    assert job.log.read_text() == f"earlier\n3 yes {job.folder}\n"


def test_stop_lets_runs_save_and_starts_no_others(tmp_path: Path) -> None:
    jobs = [make_job(tmp_path / f"u{n}", SAVES) for n in range(3)]
    launcher = local(2)
    with meanwhile(stopping := Stopping(launcher, jobs[:2])):
        ended = carry_out(launcher, jobs)
    assert stopping.seconds < 10
    assert {name: end.status for name, end in ended.items()} == {"u0": 143, "u1": 143}
    assert all((job.folder / "saved").exists() and not alive(job.folder) for job in jobs[:2])
    assert not (tmp_path / "u2" / "pid").exists()


@pytest.mark.slow
def test_stop_kills_a_run_that_does_not_end(tmp_path: Path) -> None:
    job = make_job(tmp_path / "u", IGNORES)
    launcher = local()
    with meanwhile(stopping := Stopping(launcher, [job])):
        ended = carry_out(launcher, [job])
    assert stopping.seconds < 10
    assert ended["u"].status == -9
    assert not alive(job.folder)


def test_a_launcher_stopped_before_launch_starts_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path / "u", "pass")
    launcher = local()
    launcher.stop()
    assert carry_out(launcher, [job]) == {}
    assert not (job.folder / "pid").exists()


def test_an_abandoned_launcher_leaves_no_process(tmp_path: Path) -> None:
    jobs = [make_job(tmp_path / "quick", "pass"), make_job(tmp_path / "slow", SAVES)]
    launched = local(2).launch(jobs)
    assert next(launched).job.name == "quick"
    wait_for((jobs[1].folder / "ready").exists)
    launched.close()  # type: ignore[attr-defined]
    assert not alive(jobs[1].folder)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_run_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    job = make_job(tmp_path / "u", SAVES)
    code = (
        "import os, time\n"
        "from ssl_toolkit.launchers.job import JobProcess\n"
        f"JobProcess({job.command!r}, {str(job.folder)!r}, {str(job.log)!r}, '/', {{}}).start()\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as launcher:
        wait_for((job.folder / "ready").exists)
        assert alive(job.folder)
        launcher.kill()
    wait_for(lambda: not alive(job.folder))
    assert (job.folder / "saved").exists()


def test_a_restarted_run_waits_for_its_predecessor(tmp_path: Path) -> None:
    job = make_job(tmp_path / "u", "save('times', time.time())")
    lock = hold(job.folder)
    released = []

    def release() -> None:
        time.sleep(1.5)
        released.append(time.time())
        lock.close()

    with meanwhile(release):
        assert JobProcess.of(job).run() == (0, "")
    assert numbers(job, "times") > released[0]


def test_workers_of_a_cluster_need_no_torch() -> None:
    modules = "ssl_toolkit.launchers.job, ssl_toolkit_slurm.task"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_reported_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *rest: None if n == package else find(n, *rest)
    )
    with pytest.raises(PluginError) as caught:
        registry.require_packages("launchers", name)
    assert str(caught.value) == (
        f"launcher '{name}' needs the package {package}, which is not installed: "
        f"pip install 'ssl-toolkit[{name}]'"
    )


def test_listing_and_loading_launchers_imports_neither_ray_nor_submitit() -> None:
    code = (
        "import sys\n"
        "from ssl_toolkit import registry\n"
        "for name in ('local', 'ray', 'slurm'):\n"
        "    assert registry.load('launchers', name).plugin_kind == 'launchers'\n"
        "assert not {'ray', 'submitit'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_signals_that_a_worker_blocks_reach_the_command(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        job = make_job(tmp_path / "u", "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))")
        assert JobProcess.of(job).run() == (0, "")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert job.log.read_text() == "set()\n"
