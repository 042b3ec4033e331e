"""What is known of a comparison before its first run: checked on the CPU, measured elsewhere."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ssl_toolkit_ray import launcher as ray
from ssl_toolkit_slurm.launcher import Slurm
from torch.nn import functional as F

import ssl_toolkit
from ssl_toolkit import (
    Algorithm,
    Batch,
    ConfigError,
    Context,
    Job,
    JobResult,
    Launcher,
    Loss,
    Options,
    StepOutput,
    Views,
    registry,
)
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.console import Console
from ssl_toolkit.data.load import load_table
from ssl_toolkit.data.splits.split_file import save_split
from ssl_toolkit.engine.costs import Costs
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.splitting import split_of
from ssl_toolkit.launchers.local import Local
from ssl_toolkit.multirun import compare as comparing
from ssl_toolkit.multirun import plan as planning
from ssl_toolkit.multirun.compare import compare
from ssl_toolkit.multirun.in_process import InProcess
from ssl_toolkit.multirun.measure import measured
from ssl_toolkit.multirun.plan import Plan, make_plan

SHORT = {"seeds": "0", "dataset": "digits", "steps": 12}


def plan(folder: Path, launcher: Launcher | None = None, **keys: Any) -> Plan:
    given = {"algos": "supervised,fixmatch", **SHORT, **keys}
    return make_plan(load_comparison([], given), folder, launcher or local(), Console(quiet=True))


def local() -> Local:
    return Local(Local.Config())


class Elsewhere(Launcher):
    """On other machines."""

    def __init__(self) -> None:
        super().__init__(Options())

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        raise AssertionError("nothing is launched")

    def stop(self) -> None:
        """Nothing runs."""


def forbidden(*arguments: Any, **keywords: Any) -> Any:
    raise AssertionError("a GPU was touched")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs that fail the test where anything but counting is done with them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in (
        "set_device",
        "get_device_properties",
        "get_rng_state",
        "synchronize",
        "_lazy_init",
    ):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    for owner in (torch.Tensor, torch.nn.Module):
        to = owner.to

        def on_cpu(self: Any, *arguments: Any, to: Any = to, **keywords: Any) -> Any:
            assert "cuda" not in f"{arguments}{keywords}"
            return to(self, *arguments, **keywords)

        monkeypatch.setattr(owner, "to", on_cpu)
        monkeypatch.setattr(owner, "cuda", forbidden)


# --- the device is left to the runs -------------------------------------------------------------


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize("budget", ["steps", "images=2000", "minutes=1"])
@pytest.mark.usefixtures("two_gpus")
def test_planning_touches_no_gpu(
    tmp_path: Path, device: str, budget: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sync = {"model": {"sync_batchnorm": True}}
    made = plan(tmp_path, device=device, budget=budget, precision="bf16", **sync)
    assert not torch.cuda.is_initialized()
    assert capsys.readouterr().out == ""  # no warning about the CPU that it was rehearsed on
    for config in made.configs.values():
        settings = config.settings
        assert (settings.device, settings.precision) == (device, "bf16")
        assert settings.model.sync_batchnorm


def test_on_a_cpu_it_is_rehearsed_as_it_will_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(tmp_path, device="cpu", precision="fp16", seeds="0,1")
    (warning,) = capsys.readouterr().out.splitlines()
    # Seed 1 is rehearsed for the first row alone.
    where = "warning: supervised, seeds 0, 1; fixmatch, seed 0: "
    assert warning.startswith(f"{where}--precision fp16 is not faster")
    plan(tmp_path, device="cpu", precision="fp16")
    assert "warning: every row, seed 0: --precision" in capsys.readouterr().out
    plan(tmp_path, device="cpu", precision="fp16", algos="supervised")
    assert "supervised, seed 0: --precision fp16 is not faster" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="synchronizes BatchNorm on CUDA devices only"):
        plan(tmp_path, device="cpu", model={"sync_batchnorm": True})


def test_one_run_is_prepared_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []

    def watched(*arguments: Any, **keywords: Any) -> Experiment:
        assert not [one for one in made if one() is not None]
        experiment = prepare(*arguments, **keywords)
        made.extend(map(weakref.ref, (experiment.trainer, experiment.trainer.classifier)))
        return experiment

    monkeypatch.setattr(planning, "prepare", watched)
    kept = plan(tmp_path, budget="images=2000", seeds="0,1")
    assert len(made) == 2 * 3
    assert not [one for one in made if one() is not None]
    assert not kept.unmeasured


@pytest.mark.parametrize(
    ("device", "gpus"), [("auto", (0, 2)), ("cuda", (2, 0)), ("cpu", (0, 0)), ("mps", (0, 0))]
)
def test_requested_resources_do_not_depend_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, gpus: tuple[int, int]
) -> None:
    for seen in (0, 8):
        monkeypatch.setattr(torch.cuda, "device_count", lambda seen=seen: seen)
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen > 0)
        made = plan(tmp_path, Elsewhere(), device=device, devices=2)
        job = made.job("name", ("command",), tmp_path, tmp_path / "log", made.comparison.rows[1])
        assert (job.gpus, job.gpus_if_any) == gpus


def test_an_unavailable_device_is_refused_only_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--device cuda: torch sees 0 CUDA"):
        plan(tmp_path, device="cuda")
    with pytest.raises(ConfigError, match="--device tpu: unknown device"):
        plan(tmp_path, device="tpu")
    plan(tmp_path, Elsewhere(), device="cuda")
    for launcher in (local(), Elsewhere()):
        with pytest.raises(ConfigError, match="--device cuda:1: the launcher assigns the GPUs"):
            plan(tmp_path, launcher, device="cuda:1")
    with pytest.raises(ConfigError, match=r"--batch-size 32: 3 processes share it in equal parts"):
        plan(tmp_path, device="cpu", devices=3)


def test_launchers_assign_gpus_if_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(**gpus: int) -> Job:
        return Job("u", ("true",), tmp_path, tmp_path / "log", **gpus)

    either = job(gpus_if_any=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)  # the variable alone makes no GPU
    assert (either.local_gpus, job(gpus=1).local_gpus) == (0, 1)
    assert local()._slots_of([job()] * 3) == local()._slots_of([either] * 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert (either.local_gpus, local()._slots_of([job(), either])) == (2, 2)

    for nodes, expected in (([{"CPU": 8}], 0), ([{"CPU": 8}, {"CPU": 8, "GPU": 2.0}], 2)):
        monkeypatch.setattr(ray, "_nodes", lambda nodes=nodes: nodes)
        assert ray._gpus(either) == expected
    assert ray._gpus(job(gpus=1)) == 1

    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "srun").touch(mode=0o755)
    with pytest.raises(ConfigError, match="--device auto: a job of Slurm has only the GPUs"):
        next(iter(Slurm(Slurm.Config()).launch([either])))
    assert Slurm(Slurm.Config())._gpus([job(gpus=2), job()]) == 2
    assert Slurm(Slurm.Config(sbatch={"gres": "gpu:1"}))._gpus([either]) == 0
    assert Slurm(Slurm.Config(cluster="local"))._gpus([either]) == 2


# --- threads and the budget are part of the plan ------------------------------------------------


def test_rows_of_other_split_files_are_refused(tmp_path: Path) -> None:
    config = validate([Layer("", {"dataset": "digits", "steps": 12})])
    settings = resolve_config(config)[0].settings
    table, split, _ = split_of(load_table(settings), settings)
    rows = {}
    for name, rows_of in (("one", split.labeled), ("two", split.labeled[::-1])):
        save_split(tmp_path / f"{name}.json", table, replace(split, labeled=rows_of))
        rows[name] = {"algo": "supervised", "split": str(tmp_path / f"{name}.json")}
    with pytest.raises(ConfigError, match=r"^split of seed 0 must .* in one; .* in two"):
        plan(tmp_path / "none", algos=None, rows=rows)
    rows["two"] = rows["one"]
    assert len(plan(tmp_path / "none", algos=None, rows=rows).configs) == 2


def test_a_plan_keeps_its_threads_and_its_budget(tmp_path: Path) -> None:
    first = plan(tmp_path, threads=2, budget="images=2000")
    first.write()
    assert plan(tmp_path, budget="images=2000").threads == 2
    with pytest.raises(ConfigError, match="threads is 2 there, 1 here; use the same values, or"):
        plan(tmp_path, threads=1, budget="images=2000")
    with pytest.raises(ConfigError, match="budget is images=2000 there, images=4000 here"):
        plan(tmp_path, budget="images=4000")
    with pytest.raises(ConfigError, match="budget is images=2000 there, steps here"):
        plan(tmp_path)


def test_images_are_those_of_the_current_settings(tmp_path: Path) -> None:
    for batch_size, steps in ((32, 62), (16, 125)):
        made = plan(tmp_path, algos="supervised", budget="images=2000", batch_size=batch_size)
        assert made.configs["supervised", 0].settings.steps == steps
        made.write()  # and killed before the first run


# --- minutes ------------------------------------------------------------------------------------


def test_steps_are_measured_again_for_other_settings(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"budget": "minutes=1", "batch_size": 16}
    plan(tmp_path, **keys).with_steps({"supervised": 20, "fixmatch": 10}).write()

    def unmeasured(**others: Any) -> list[str]:
        return [row.name for row in plan(tmp_path, **{**keys, **others}).unmeasured]

    assert unmeasured(seeds="0,1") == []
    assert unmeasured(fixmatch={"unlabeled_ratio": 3}) == ["fixmatch"]
    assert unmeasured(batch_size=32) == ["supervised", "fixmatch"]


def test_costs_count_what_a_run_does() -> None:
    costs = Costs(step=1.0, evaluation=10.0, scan=100.0, scan_every=4)
    assert costs.of(1, eval_every=1) == 111
    assert costs.of(4, eval_every=4) == 114
    assert costs.of(5, eval_every=4) == 225
    assert costs.steps_within(114, lambda steps: 4) == 4
    assert costs.steps_within(224, lambda steps: 4) == 4
    assert costs.steps_within(225, lambda steps: 4) == 5
    assert costs.steps_within(110, lambda steps: 1) == 0
    never = Costs(step=1.0, evaluation=10.0, scan=0.0, scan_every=0)
    assert never.of(7, eval_every=7) == 17
    # A run that is evaluated twenty times, however long it is.
    assert 980 < never.steps_within(1200, lambda steps: max(1, steps // 20)) <= 1000


class Scans(Algorithm):
    """Supervised, with a scan that takes long and that a step needs."""

    found = 0

    def views(self) -> Views:
        return Views()

    @property
    def scan_every(self) -> int:
        return 2

    def scan(self, labeled: Any, unlabeled: Any, ctx: Context) -> None:
        time.sleep(0.3)
        self.found += 1

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        assert self.found
        logits = ctx.model(batch.labeled_weak[0]).float()
        return StepOutput({"supervised": Loss(F.cross_entropy(logits, batch.labels))})


@pytest.fixture
def scans() -> Iterator[str]:
    ssl_toolkit.register_algorithm("scans")(Scans)
    yield "scans"
    del registry._registered["algorithms", "scans"]


def test_minutes_pay_for_scans_too(scans: str, tmp_path: Path) -> None:
    config = validate([Layer("test", {"algo": scans, "dataset": "digits", "device": "cpu"})])
    costs = prepare(config).trainer.measure(steps=2, warm=1)
    assert 0.3 <= costs.scan < 2
    assert costs.scan_every == 2
    first = plan(tmp_path, InProcess(), algos=scans, budget="minutes=0.05", threads=1)
    assert [row.name for row in first.unmeasured] == ["scans"]
    made = measured(first, InProcess(), Console(quiet=True))
    assert made.unmeasured == ()
    steps = made.configs["scans", 0].settings.steps
    assert steps is not None
    assert 1 <= steps <= 2 * 3 / 0.3  # without scans hundreds of steps would fit into 3 s
    assert first.configs["scans", 0].settings.steps == 12


def test_minutes_are_measured_by_the_launcher_and_once(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "algos": "supervised,simple",
        "simple": {"strong_views": 8, "unlabeled_ratio": 8},
        "budget": "minutes=0.05",
    }
    first = plan(tmp_path, threads=1, **keys)
    assert [row.name for row in first.unmeasured] == ["supervised", "simple"]
    made = measured(first, local(), Console(quiet=True))
    steps = {row: config.settings.steps for (row, _), config in made.configs.items()}
    # SimPLE's 73 forwards to one are slower even where other processes disturb the measurement.
    assert steps["supervised"] > steps["simple"] >= 1
    for config in made.configs.values():
        assert config.settings.eval_every == max(1, config.settings.steps // 20)
    assert [*tmp_path.iterdir()] == []
    made.write()
    again = plan(tmp_path, **keys)
    assert (again.configs, again.unmeasured) == (made.configs, ())


class Fails(Elsewhere):
    """Ends each job badly, after a signal if there is one."""

    number: int | None = None

    def launch(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        for job in jobs:
            assert job.command[:3] == (sys.executable, "-m", "ssl_toolkit.multirun.measure")
            job.log.write_text("lines\nerror: no room on the GPU\nof a log\n")
            if self.number:
                signal.raise_signal(self.number)
            yield JobResult(job, 1)


def test_a_failed_measurement_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "_launcher", lambda comparison: Fails())
    given = {"algos": ["supervised"], **SHORT, "budget": "minutes=1", "output": str(tmp_path / "c")}
    with pytest.raises(
        ConfigError, match="measuring supervised for the budget: no room on the GPU"
    ):
        compare(given)
    monkeypatch.setattr(Fails, "number", signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        compare(given)
    assert {path.name for path in (tmp_path / "c").iterdir()} <= {".lock"}
    monkeypatch.setattr(Fails, "launch", lambda launcher, jobs: iter(()))
    with pytest.raises(ConfigError, match="supervised was not measured"):
        compare(given)
    monkeypatch.setattr(comparing, "measured", lambda plan, *_: plan.with_steps({"supervised": 0}))
    with pytest.raises(ConfigError, match="budget minutes=1: not enough for a step of supervised"):
        compare(given)
