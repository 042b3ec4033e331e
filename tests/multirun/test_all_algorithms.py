"""``compare --algos all``: every algorithm that can train, and reasons for the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import call, refusal
from test_plan import SHORT, Fails, local, plan

import ssl_toolkit
from ssl_toolkit import Algorithm, Batch, ConfigError, Context, StepOutput, Views, registry
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.console import Console
from ssl_toolkit.errors import PluginError
from ssl_toolkit.multirun.compare import compare
from ssl_toolkit.multirun.measure import measured

BUILT_IN = [e.name for e in registry.entries("algorithms") if e.built_in]
PROBES = ["graph_probe", "knn", "label_propagation", "label_spreading", "linear_probe"]


@pytest.fixture(autouse=True)
def without_algorithms_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Restrict the registered algorithms to some names."""

    def restrict(*names: str) -> None:
        entries = registry.entries

        def of(group: str) -> list[registry.Entry]:
            return [e for e in entries(group) if group != "algorithms" or e.name in names]

        monkeypatch.setattr(registry, "entries", of)

    return restrict


def test_all_is_every_algorithm_without_hidden_labels() -> None:
    comparison = load_comparison(flags={"algos": "all"})
    names = [row.name for row in comparison.rows]
    assert names == [name for name in BUILT_IN if name != "fully_supervised"]
    assert comparison.left_out == {"fully_supervised": "uses the hidden labels of unlabeled images"}
    assert all(row.optional for row in comparison.rows)
    assert comparison.baseline == "supervised"


def test_named_algorithms_join_all_once_and_are_required() -> None:
    comparison = load_comparison(flags={"algos": "all,fully_supervised,knn", "baseline": "uda"})
    names = [row.name for row in comparison.rows]
    assert sorted(names) == BUILT_IN
    assert comparison.left_out == {}
    required = {row.name for row in comparison.rows if not row.optional}
    assert required == {"fully_supervised", "knn", "uda"}
    with pytest.raises(ConfigError, match="all is given twice"):
        load_comparison(flags={"algos": "all,all"})


def test_a_broken_plugin_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    load = registry.load

    def broken(group: str, name: str) -> Any:
        if name == "uda":
            raise PluginError("algorithm 'uda' of broken 1.0 can't be imported")
        return load(group, name)

    monkeypatch.setattr(registry, "load", broken)
    comparison = load_comparison(flags={"algos": "all"})
    assert "uda" not in [row.name for row in comparison.rows]
    assert comparison.left_out["uda"] == "algorithm 'uda' of broken 1.0 can't be imported"


def test_probes_need_weights(tmp_path: Path, only: Any) -> None:
    only("supervised", "fixmatch", *PROBES)
    comparison = plan(tmp_path, algos="all").comparison
    assert [row.name for row in comparison.rows] == ["fixmatch", "supervised"]
    assert comparison.left_out.keys() == {*PROBES}
    assert "needs --pretrained or --weights" in comparison.left_out["knn"]
    explicit = plan(tmp_path, algos="all,knn").comparison
    assert "knn" in [row.name for row in explicit.rows]


def test_what_the_data_does_not_allow_is_left_out(tmp_path: Path, only: Any) -> None:
    only("supervised", "fixmatch")
    labels = {"algos": "all", "num_labels": "1438", "val_fraction": "0", "steps": "2"}
    comparison = plan(tmp_path, **labels).comparison
    assert [row.name for row in comparison.rows] == ["supervised"]
    assert "no unlabeled images are left" in comparison.left_out["fixmatch"]
    with pytest.raises(ConfigError, match="no unlabeled images are left"):
        plan(tmp_path, **labels | {"baseline": "fixmatch"})


def test_a_fault_of_all_rows_is_an_error(tmp_path: Path) -> None:
    line = refusal("compare", "--algos", "all", "--data", tmp_path / "none", "--output", tmp_path)
    assert line.count("\n") == 1
    assert "doesn't exist" in line


def test_a_row_that_can_not_be_measured_is_left_out(tmp_path: Path, only: Any) -> None:
    only("supervised", "fixmatch")
    first = plan(tmp_path, algos="all", budget="minutes=1")
    (tmp_path / "measuring").mkdir()
    with pytest.raises(ConfigError, match="no room on the GPU"):  # of all rows
        measured(first, Fails(), Console(quiet=True))

    launch = local().launch

    class OneFails(Fails):
        def launch(self, jobs: Any) -> Any:
            yield from super().launch([job for job in jobs if "fixmatch" in job.name])
            yield from launch([job for job in jobs if "fixmatch" not in job.name])

    plan_ = measured(first, OneFails(), Console(quiet=True))
    assert [row.name for row in plan_.comparison.rows] == ["supervised"]
    reason = "measuring fixmatch for the budget: no room on the GPU"
    assert plan_.comparison.left_out == {"fixmatch": reason}


class Explodes(Algorithm):
    """Raises an error in its second step."""

    def views(self) -> Views:
        return Views()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        if ctx.step:
            raise RuntimeError("no such luck")
        losses = {"supervised": ssl_toolkit.Loss(ctx.model(batch.labeled_weak[0]).mean())}
        return StepOutput(losses)


@pytest.fixture
def explodes() -> Iterator[str]:
    ssl_toolkit.register_algorithm("explodes")(Explodes)
    yield "explodes"
    del registry._registered["algorithms", "explodes"]


def test_a_failing_member_costs_only_itself(tmp_path: Path, only: Any, explodes: str) -> None:
    only("supervised", "fixmatch", "knn", "fully_supervised", explodes)
    before = torch.get_num_threads()
    result = compare({"algos": "all", **SHORT, "output": str(tmp_path / "c"), "threads": 1})
    torch.set_num_threads(before)
    assert result.status == 1
    status = {row.name: row.runs[0].status for row in result.rows}
    assert status == {"explodes": "failed", "fixmatch": "completed", "supervised": "completed"}
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    note = content["notes"][0]
    assert note.startswith("all leaves out fully_supervised (uses the hidden labels")
    assert "knn (fits a head to frozen features" in note
    table = (tmp_path / "c" / "comparison.md").read_text()
    assert "no such luck" in table
    assert "all leaves out" in table
    assert (tmp_path / "c" / "report.html").exists()


def test_a_dry_run_prints_what_all_leaves_out(tmp_path: Path) -> None:
    flags = ("--dataset", "digits", "--steps", "2", "--seeds", "0", "--output", tmp_path / "none")
    result = call("compare", "--algos", "all", "--dry-run", *flags)
    assert result.returncode == 0, result.stderr
    *rows, last = result.stdout.splitlines()[-20:]
    assert "# row: vat" in rows
    assert last.startswith("# all leaves out fully_supervised")
    assert not (tmp_path / "none").exists()
