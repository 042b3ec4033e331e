"""The Ray launcher: two nodes, one of which is lost, and an instance of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_nodes
from fake_jobs import COUNTS, alive, carry_out, make_job, meanwhile, wait_for
from in_process import call
from ssl_toolkit_ray import Ray

from ssl_toolkit import ConfigError
from ssl_toolkit.runs.metrics_log import last_step

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes on one machine need Linux")


@pytest.fixture(autouse=True)
def quiet_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reports to Ray's makers, no token in the home folder, no task killed to save memory."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")


class Nodes:
    """Two nodes with a CPU each."""

    def __init__(self) -> None:
        for attempt in (1, 2, 3):  # Ray gives a node 30 s to start, however busy the machine is
            script = Path(ray_nodes.__file__)
            self._process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.address = self._read()
            if self.address:
                return
            error = self._process.communicate()[1]
            assert attempt < 3, error

    def lose_one(self) -> None:
        """Kill every process of the node that does not keep the cluster together."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._read() == "lost"

    def end(self) -> None:
        """End the other one too."""
        self._process.communicate(timeout=120)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    two = Nodes()
    try:
        yield two
    finally:
        two.end()


@pytest.mark.slow
def test_all_jobs_complete_although_a_node_is_lost(tmp_path: Path, nodes: Nodes) -> None:
    jobs = [make_job(tmp_path / f"u{n}", COUNTS, 60) for n in range(3)]
    jobs.append(make_job(tmp_path / "bad", "sys.exit(3)"))

    def lose_one_when_both_work() -> None:
        wait_for(lambda: sum((job.folder / "step").exists() for job in jobs) >= 2)
        nodes.lose_one()

    too_wide = make_job(tmp_path / "wide", "pass", threads=99)
    with pytest.raises(ConfigError, match="no node of Ray has 99 CPUs"):
        carry_out(Ray(Ray.Config(address=nodes.address)), [too_wide])
    with meanwhile(lose_one_when_both_work):
        ended = carry_out(Ray(Ray.Config(address=nodes.address)), jobs)
    assert {name: (end.status, end.reason) for name, end in ended.items()} == {
        **{f"u{n}": (0, "") for n in range(3)},
        "bad": (3, ""),
    }
    attempts = [(job.folder / "attempts").read_text().split() for job in jobs[:3]]
    assert sorted(map(len, attempts)) == [1, 1, 2]
    again = next(u for u, tried in zip(jobs, attempts, strict=False) if len(tried) == 2)
    assert int((again.folder / "first_step").read_text()) > 0
    assert not any(alive(job.folder) for job in jobs)
    assert not (too_wide.folder / "pid").exists()


OWN_INSTANCE = """
import json, pathlib, signal, sys, time
from fake_jobs import SAVES, Stopping, make_job, meanwhile
from ssl_toolkit import ConfigError
from ssl_toolkit_ray import Ray
import ray

folder = pathlib.Path(sys.argv[1])
jobs = [make_job(folder / f"u{n}", SAVES) for n in range(2)]
launcher = Ray(Ray.Config(jobs=1))
handler = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
with meanwhile(stopping := Stopping(launcher, jobs[:1])):
    ended = []
    for attempt in (1, 2, 3):
        try:
            for end in launcher.launch(jobs):
                ended.append([end.job.name, end.status])
            break
        except ConfigError as error:  # a busy machine
            assert "timed out during startup" in str(error) and attempt < 3
told = {
    "ended": ended,
    "seconds": stopping.seconds,
    "connected": ray.is_initialized(),
    "handler": signal.getsignal(signal.SIGTERM) is handler,
    "ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
}
(folder / "told.json").write_text(json.dumps(told))
"""


@pytest.mark.slow
def test_its_own_instance_stops_in_time_and_leaves_nothing(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", OWN_INSTANCE, str(tmp_path)],
        cwd=Path(ray_nodes.__file__).parent,
        check=True,
    )
    message = json.loads((tmp_path / "told.json").read_text())
    assert message.pop("seconds") < 10
    assert message == {
        "ended": [["u0", 143]], "connected": False, "handler": True, "ignored": True
    }  # fmt: skip
    assert (tmp_path / "u0" / "saved").exists()
    assert not (tmp_path / "u1" / "pid").exists()
    assert not alive(tmp_path / "u0")


def test_without_a_cluster_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def refuse(*arguments: object, **options: object) -> None:
        raise ConnectionError("nobody answers\nat length")

    monkeypatch.setattr(ray, "init", refuse)
    job = make_job(tmp_path / "u", "pass")
    with pytest.raises(ConfigError) as caught:
        carry_out(Ray(Ray.Config(address="auto")), [job])
    assert (
        str(caught.value) == "launcher_options.address=auto: can't connect to Ray: nobody answers"
    )
    assert not (job.folder / "pid").exists()


@pytest.mark.slow
def test_a_comparison_that_loses_a_node_equals_the_local_one(tmp_path: Path, nodes: Nodes) -> None:
    given = "--algos simple,fixmatch --seeds 0 --dataset digits --steps 40 --eval-every 5"
    given += " --threads 1 --output"
    here, there = tmp_path / "here" / "digits", tmp_path / "there" / "digits"
    runs = [there / "runs" / row / "s0" for row in ("simple", "fixmatch")]

    def lose_one_when_both_have_saved() -> None:
        wait_for(lambda: all(last_step(run / "metrics.jsonl") >= 10 for run in runs), 600)
        nodes.lose_one()

    ray = ["--launcher", "ray", "--set", f"launcher_options.address={nodes.address}"]
    with meanwhile(lose_one_when_both_have_saved):
        result = call("compare", *given.split(), there, *ray)
    assert result.returncode == 0, result.stdout + result.stderr
    result = call("compare", *given.split(), here)
    assert result.returncode == 0, result.stdout + result.stderr
    assert sum("resuming after" in (run / "log.txt").read_text() for run in runs) == 1
    assert untimed(json.loads((there / "comparison.json").read_text())) == untimed(
        json.loads((here / "comparison.json").read_text())
    )
    for run in runs:
        local = here / run.relative_to(there)
        assert metrics(run) == metrics(local)
        assert (run / "predictions.npz").read_bytes() == (local / "predictions.npz").read_bytes()


def metrics(run: Path) -> list[Any]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [untimed(json.loads(line)) for line in lines]


def untimed(tree: Any) -> Any:
    """Without what depends on the clock, the folder or the machine."""
    if isinstance(tree, dict):
        names = [key for key in tree if "second" not in key and key != "reached"]
        return {key: untimed(tree[key]) for key in names}
    return [untimed(value) for value in tree] if isinstance(tree, list) else tree
