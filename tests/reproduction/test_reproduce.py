"""`reproduce`: rows of published tables are listed, run, resumed and reported honestly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_files import (
    accept_tiny_files,
    write_cifar10,
    write_cifar100,
    write_domainnet_real,
    write_mini_imagenet,
)
from in_process import call, refusal

import ssl_toolkit
from ssl_toolkit.config import yaml
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.multirun import cost
from ssl_toolkit.recipes import load_recipes
from ssl_toolkit.reproduction import run
from ssl_toolkit.reproduction.results import Reproduction, collect
from ssl_toolkit.reproduction.rows import load_rows
from ssl_toolkit.reproduction.tables import find_rows

TABLES = dict.fromkeys(recipe.table for recipe in load_recipes().values())
PAPER = [*dict.fromkeys(one.table for one in load_recipes().values() if "SimPLE" in one.paper)]
WRITTEN = ("cifar10", "cifar100", "mini_imagenet", "domainnet_real")
"""Data sets of the fixture `root`."""
SCALE = 2e-6
"""Two steps of the 1,048,576 of the paper."""
SMALL = (
    *("--scale", SCALE, "--seeds", "0,1", "--device", "cpu", "--batch-size", 4),
    *("--labels-per-class", 2, "--image-size", 16, "--backbone", "wrn_10_1"),
    "--no-pretrained",
)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the jobs in this process, where the tiny files and the recipes of a test are accepted."""
    accept_tiny_files(monkeypatch)
    monkeypatch.setattr("ssl_toolkit.multirun.compare.registered_here", lambda rows: "a test")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets of the paper in their published form, with ten classes."""
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder, 12)
    write_cifar100(folder, 60, 10)
    write_mini_imagenet(folder / "mini_imagenet")
    write_domainnet_real(folder / "domainnet_real")
    return folder


TOY = """
title: "Toy: nobody, nowhere"
tables: {toy: digits}
deviations: [the images are small]
parts:
  common: {dataset: digits, backbone: wrn_10_1, steps: 1000, eval_every: 500, batch_size: 4}
rows:
  toy/source:
    parts: [common]
    settings: {algo: supervised, labels_per_class: 6}
  toy/scratch:
    parts: [common]
    settings: {algo: supervised, labels_per_class: 2}
    published: {top1: 12.34, by: somebody else, method: Supervised, note: with a trick}
  toy/transfer:
    parts: [common]
    settings: {algo: supervised, labels_per_class: 2, lr: 0.001}
    published: {top1: 56.78, by: somebody else, method: Transfer}
    weights_of: toy/source
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Run rows of a table of the test for two steps."""
    (tmp_path / "configs" / "recipes").mkdir(parents=True)
    (tmp_path / "configs" / "recipes" / "toy.yaml").write_text(TOY)
    monkeypatch.setattr(yaml, "configs_dir", lambda: tmp_path / "configs")
    load_recipes.cache_clear()

    def reproduce(*arguments: object, scale: float = 0.002) -> Any:
        return call("reproduce", "toy", *arguments, "--output", tmp_path / "out", "--device", "cpu",
                    "--scale", scale)  # fmt: skip

    yield reproduce
    load_recipes.cache_clear()


def report(folder: Path) -> dict[str, Any]:
    rows = Reproduction.read(folder / "report.json").tree()["rows"]
    return {row["id"]: row for row in rows}


def note(output: str, mark: str) -> str:
    """Return the note of the last mark in a text."""
    (text,) = re.findall(rf"^\[{mark.split('[')[-1].rstrip(']')}\] (.*)$", output, re.MULTILINE)
    return str(text)


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")}


def test_tables_are_listed() -> None:
    lines = call("reproduce").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*TABLES]
    assert any("CIFAR-100, 10,000 labels (SimPLE" in line for line in lines)


@pytest.mark.parametrize("table", TABLES)
def test_the_rows_of_every_table_are_listed(
    table: str, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = []

    def measure(config: Any, classes: int) -> tuple[float, int]:
        measured.append(config.settings)
        return 0.25, 2

    monkeypatch.setattr(cost, "_measure", measure)
    monkeypatch.chdir(tmp_path)
    result = call("reproduce", table, "--dry-run", "--device", "cpu", "--root", root)
    assert result.returncode == 0, result.stderr
    for recipe in load_recipes().values():
        if recipe.table == table:
            block = result.stdout.split(f"\n{recipe.id}", 1)[1]
            assert block.splitlines()[0].count(", ") >= 2
            if recipe.published:
                assert f"published: {recipe.published.top1:.2f} % ({recipe.published.by})" in block
            (data,) = re.findall(r"^  data: (.*)$", block.split("\n  cost")[0], re.MULTILINE)
            here = recipe.settings["dataset"] in WRITTEN
            assert data == "found" if here else note(result.stdout, data).count("--root DIR") == 1
            if recipe.deviations:
                (marks,) = re.findall(
                    r"^  deviations: (.*)$", block.split("\n  cost")[0], re.MULTILINE
                )
                notes = [note(result.stdout, mark) for mark in marks.split()]
                assert notes == list(recipe.deviations)
    assert measured
    assert all(settings.steps > 100 for settings in measured)
    assert [*tmp_path.iterdir()] == []


def test_the_cost_is_measured_and_extrapolated(tmp_path: Path) -> None:
    flags = ("--backbone", "wrn_10_1", "--image-size", 8, "--device", "cpu", "--seeds", "0,1")
    lines = call("reproduce", "cifar100", "--row", "03", "--dry-run", *flags).stdout
    assert "cifar-100-python missing" in lines
    assert "--root DIR" in lines
    (line,) = (line for line in lines.splitlines() if line.startswith("  cost: "))
    assert "on cpu (1,048,576 steps of " in line
    assert " for 2 seeds" in line
    scaled = call("reproduce", "cifar100", "--row", "03", "--dry-run", *flags, "--scale", 0.001)
    assert "cost at scale 0.001: " in scaled.stdout
    assert "(1,049 steps of " in scaled.stdout
    assert "cifar100/03 SimPLE (scale 0.001): " in scaled.stdout
    assert scaled.stdout.startswith("cifar100 at scale 0.001: ")


def test_larger_batches_are_measured_until_a_step_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = load_rows(find_rows("cifar100", ["03"]), flags={"device": "cpu"})[1]

    def measured(step: Callable[[int], float | None]) -> Any:
        def seconds(config: Any, table: Any, split: Any) -> float | None:
            batches.append(config.settings.batch_size)
            return step(batches[-1])

        batches: list[int] = []
        monkeypatch.setattr(cost, "step_seconds", seconds)
        return cost.StepTimes().cost(row.config, 100), batches

    def no_memory(batch: int) -> float:
        if batch > 8:
            raise torch.OutOfMemoryError
        return 0.01

    slow, batches = measured(lambda batch: 0.02 * batch)
    assert batches == [2, 4, 8, 16]
    assert slow.step == pytest.approx(0.02 * 64)
    assert "extrapolated from a batch of 2 to 64), " in slow.describe(3)
    fast, batches = measured(lambda batch: 0.001 + 0.0001 * batch)
    assert batches == [2, 4, 8, 16, 32, 64]
    assert (fast.step, fast.measured) == (pytest.approx(0.0074), 64)
    assert "extrapolated" not in fast.describe(1)
    assert measured(no_memory)[0].measured == 8
    assert measured(lambda batch: None)[0] is None


@pytest.mark.parametrize("table", PAPER)
def test_a_row_of_every_table_is_run(table: str, root: Path, tmp_path: Path) -> None:
    rows = [one for one in load_recipes().values() if one.table == table and one.published]
    row = next(one for one in rows if one.settings["dataset"] != "svhn")
    result = call("reproduce", table, "--row", row.id, *SMALL, "--root", root,
                  "--output", tmp_path / "out")  # fmt: skip
    assert result.returncode == 0, result.stderr + result.stdout
    (line,) = (
        line for line in result.stdout.splitlines() if f"{row.id} " in line and "published" in line
    )
    assert f"at scale {SCALE:g}: measured here " in line
    assert row.published is not None
    assert f"published {row.published.top1:.2f} % ({row.published.by})" in line
    of_row = report(tmp_path / "out")[row.id]
    assert of_row["scale"] == SCALE
    assert of_row["changed"]["batch_size"] == 4
    accuracies = [
        json.loads(path.read_text())["test"]["accuracy"]
        for path in sorted((tmp_path / "out").glob("*/runs/*/*/summary.json"))
        if "weights-" not in str(path)
    ]
    assert list(of_row["measured"]["top1"].values()) == pytest.approx([100 * a for a in accuracies])
    others = [other for id, other in report(tmp_path / "out").items() if id != row.id]
    assert all(other["measured"] is None for other in others if other["published"])


def test_the_scale_is_shown_everywhere(toy: Any, tmp_path: Path) -> None:
    result = toy("--row", "scratch", "--seeds", "0,1")
    assert result.returncode == 0, result.stderr
    (folder,) = (path.parent for path in (tmp_path / "out").glob("*/plan.json"))
    page = (tmp_path / "out" / "report.md").read_text()
    title, table = page.splitlines()[0], page.split("| row ")[1]
    assert "at scale 0.002" in title
    assert "toy/scratch Supervised at scale 0.002" in table.replace("\\", "")
    for name in ("comparison.md", "report.html", "comparison.csv"):
        assert "scale 0.002" in (folder / name).read_text().replace("\\", ""), name
    for line in result.stdout.splitlines():
        if line.startswith("toy/scratch"):
            assert "scale 0.002" in line
    (config,) = folder.glob("runs/*/s0/config.yaml")
    assert {"recipe": "toy/scratch", "scale": "0.002", "steps": "2"}.items() <= yaml.read(
        config
    ).items()


def test_numbers_and_intervals_of_ours_are_beside_those_of_others(toy: Any, tmp_path: Path) -> None:
    assert toy("--row", "scratch", "--seeds", "0-2", scale=0.02).returncode == 0
    row = report(tmp_path / "out")["toy/scratch"]
    measured = row["measured"]
    low, high = measured["interval"]
    assert low < measured["mean"] < high
    assert row["published"] == {"top1": 12.34, "by": "somebody else", "note": "with a trick"}
    page = (tmp_path / "out" / "report.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith("| toy/scratch"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1].startswith(f"{measured['mean']:.2f} ± {measured['deviation']:.2f} %")
    assert cells[2:6] == ["3", f"{low:.2f} to {high:.2f} %", "12.34 %", "somebody else"]
    (other,) = (line for line in page.splitlines() if line.startswith("| toy/transfer"))
    assert [cell.strip() for cell in other.split("|")[2:7]] == [
        "not run",
        "0",
        "–",
        "56.78 %",
        "somebody else",
    ]
    assert "published: with a trick" in page
    assert "the recipe differs from the publication: the images are small" in page


def test_the_report_as_json_and_in_python(toy: Any, tmp_path: Path) -> None:
    done = toy("--row", "scratch", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == Reproduction.read(tmp_path / "out" / "report.json").tree()
    before = stamps(tmp_path)
    config = {"output": str(tmp_path / "out"), "device": "cpu", "scale": 0.002}
    result = ssl_toolkit.reproduce("toy", ["toy/scratch"], config)
    assert (result.folder, result.status) == (tmp_path / "out", 0)
    assert result.report.tree() == json.loads(done.stdout)
    assert stamps(tmp_path) == before  # the run is completed
    for rows in ("all", []):
        with pytest.raises(ConfigError, match="rows is a list of IDs"):
            ssl_toolkit.reproduce("toy", rows)
    for arguments in ((), ("toy",), ("toy", "--row", "scratch", "--dry-run")):
        assert "--json prints the report of rows" in refusal("reproduce", *arguments, "--json")


def test_rows_that_need_weights_start_from_one_run_that_makes_them(
    toy: Any, tmp_path: Path
) -> None:
    result = toy("--row", "scratch", "--row", "transfer", "--seeds", "0,1")
    assert result.returncode == 0, result.stderr + result.stdout
    (source,) = (tmp_path / "out").glob("weights-*/runs/*/s*")
    configs = {
        path.parent.parent.name + path.parent.name: yaml.read(path)
        for path in (tmp_path / "out").glob("digits-*/runs/*/*/config.yaml")
    }
    assert len(configs) == 4
    for name, config in configs.items():
        expected = str(source / "model") if "transfer" in name else None
        assert config.get("weights") == expected
    rows = report(tmp_path / "out")
    assert [row["runs"] for row in rows.values()] == [1, 2, 2]
    before = stamps(tmp_path / "out")
    again = toy("--row", "transfer", "--seeds", "0,1", "--weights", source / "model")
    assert again.returncode == 0, again.stderr
    assert stamps(tmp_path / "out") == before


def test_only_missing_runs_are_run_and_every_run_is_reported(toy: Any, tmp_path: Path) -> None:
    assert toy("--row", "toy/scratch", "--seeds", "0").returncode == 0
    before = stamps(tmp_path / "out")
    result = toy("--row", "transfer", "--seeds", "0")
    assert result.returncode == 0
    rows = report(tmp_path / "out")
    assert [row["runs"] for row in rows.values()] == [1, 1, 1]
    assert before.items() <= stamps(tmp_path / "out").items()
    before = stamps(tmp_path / "out")
    assert toy("--row", "all", "--seeds", "0").returncode == 0
    assert before == stamps(tmp_path / "out")


def test_a_run_that_contradicts_itself_is_in_no_mean(toy: Any, tmp_path: Path) -> None:
    assert toy("--row", "scratch", "--seeds", "0,1").returncode == 0
    (path,) = (tmp_path / "out").glob("digits-*/runs/*/s1/summary.json")
    values = json.loads(path.read_text())
    values["test"]["accuracy"] = 0.99
    path.write_text(json.dumps(values))
    (row,) = (row for row in collect("toy", tmp_path / "out").rows if row.id == "toy/scratch")
    assert row.measured is not None
    assert list(row.measured.top1) == [0]
    assert "contradicts itself" in row.problems[0]


def test_a_comparison_that_fails_costs_only_itself(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = run.compare

    def failing(config: Any, **arguments: Any) -> Any:
        if "weights-" in config.settings.output:
            raise ModelError("checkpoint not found")
        return compare(config, **arguments)

    monkeypatch.setattr(run, "compare", failing)
    result = toy("--row", "scratch", "--seeds", "0", "--row", "source")
    assert result.returncode == 1
    assert "checkpoint not found" in result.stdout
    assert report(tmp_path / "out")["toy/scratch"]["measured"]
    result = toy("--row", "transfer", "--row", "scratch", "--seeds", "0,1")
    assert result.returncode == 1
    assert "Transfer (scale 0.002): not run, because their weights were not made" in result.stdout
    assert report(tmp_path / "out")["toy/scratch"]["runs"] == 2
    assert report(tmp_path / "out")["toy/transfer"]["measured"] is None


def test_a_run_that_fails_is_reported_with_its_reason(toy: Any, tmp_path: Path) -> None:
    result = toy("--row", "scratch", "--seeds", "0,1", "--set", "lr=1e30", scale=0.01)
    assert result.returncode == 1
    row = report(tmp_path / "out")["toy/scratch"]
    assert row["measured"] is None
    assert row["runs"] == 2
    assert all("finite" in problem for problem in row["problems"])
    assert row["changed"] == {"lr": 1e30}


def test_faults_end_in_one_line_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSL_TOOLKIT_DATA", str(tmp_path / "sets"))
    line = refusal(
        "reproduce", "cifar100", "--row", "all", "--device", "cpu", "--backbone", "wrn_10_1"
    )
    assert len(line.splitlines()) == 1
    assert "cifar-100-python missing); give its folder with --root DIR" in line
    assert "did you mean 'cifar100'" in refusal("reproduce", "cifar10")
    assert "did you mean 'cifar100/03'" in refusal("reproduce", "cifar100", "--row", "o3")
    assert "`ssl-toolkit reproduce cifar100` lists its rows" in refusal(
        "reproduce", "cifar100", "--row", "x"
    )
    assert "scale" in refusal("reproduce", "cifar100", "--row", "03", "--scale", 2)
    assert "no such option --sweep" in refusal("reproduce", "cifar100", "--sweep", "lr=1,2")
    (tmp_path / "more.yaml").write_text("algos: [simple]\n")
    assert "leave algos" in refusal("reproduce", "cifar100", "--config", tmp_path / "more.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["more.yaml"]
