"""`benchmark`: a suite of comparisons is run, resumed and reported; members fail alone."""

from __future__ import annotations

import csv
import json
import runpy
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal

import ssl_toolkit
from ssl_toolkit.comparisons.schema import ScoreStats
from ssl_toolkit.config import yaml
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.runs.predictions import read_arrays
from ssl_toolkit.suites.members import plan_members
from ssl_toolkit.suites.results import Benchmark, MemberResult, ResultRow, overall
from ssl_toolkit.suites.schema import find_suite, list_suites

SUITE = """
name: tiny
version: 1
title: "for <tests>"
algos: [pseudo_label]
baseline: supervised
upper_bound: fully_supervised
seeds: [0, 1]
unlabeled_ratio: 2
settings:
  {dataset: digits, backbone: wrn_10_1, image_size: 8, batch_size: 4, steps: 4, eval_every: 2,
   device: cpu, fixmatch: {confidence_threshold: 0.8}}
folders: {pictures: python make.py ROOT/pictures}
members:
  few: {title: two labels, settings: {labels_per_class: 2}}
  elsewhere: {title: pictures of a script, settings: {data: ROOT/pictures, dataset: null}}
  broken: {title: too many labels, settings: {labels_per_class: 5000}, seeds: [0]}
"""
ROOT = Path(__file__).resolve().parents[2]
ROWS = ["supervised", "pseudo_label", "fully_supervised"]


@pytest.fixture(autouse=True, scope="module")
def _here() -> Any:
    """Run the jobs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssl_toolkit.multirun.compare.registered_here", lambda rows: "a test")
        yield


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "tiny.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture(scope="module")
def finished(suite: Path) -> Path:
    folder = suite.parent / "out"
    result = call("benchmark", suite, "--output", folder)
    assert result.returncode == 1, result.stderr + result.stdout  # of the member `broken`
    return folder


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")}


def results(folder: Path) -> dict[str, MemberResult]:
    return {one.name: one for one in Benchmark.read(folder / "benchmark.json").members}


def test_members_fail_alone(finished: Path) -> None:
    found = results(finished)
    assert {name: one.status for name, one in found.items()} == {
        "few": "completed",
        "elsewhere": "missing data",
        "broken": "failed",
    }
    assert found["elsewhere"].reason == (
        "needs pictures below --data-root DIR (pictures: python make.py DIR/pictures)"
    )
    assert "5000" in found["broken"].reason
    assert [row.name for row in found["few"].rows] == ROWS


def test_the_table_has_the_numbers_of_the_runs(finished: Path) -> None:
    with (finished / "benchmark.csv").open(newline="", encoding="utf-8") as file:
        lines = [*csv.DictReader(file)]
    assert [(line["member"], line["row"]) for line in lines] == [("few", row) for row in ROWS]
    runs = {
        row: [finished / "members/few/runs" / row / f"s{seed}" for seed in (0, 1)] for row in ROWS
    }
    read = {
        row: [json.loads((run / "summary.json").read_text()) for run in of]
        for row, of in runs.items()
    }
    values = {row: [one["test"]["accuracy"] for one in of] for row, of in read.items()}
    bound = statistics.mean(one["validation"]["accuracy"] for one in read["fully_supervised"])
    for line in lines:
        row = line["row"]
        number = {key: float(text) for key, text in line.items() if text and key in NUMBERS}
        assert line["upper_bound"] == ("yes" if row == "fully_supervised" else "no")
        assert (line["score"], line["seeds"]) == ("test.accuracy", "2")
        assert number["mean"] == pytest.approx(statistics.mean(values[row]))
        assert number["sd"] == pytest.approx(statistics.stdev(values[row]))
        if "interval_low" in number:
            assert 0 < number["interval_low"] < number["mean"] < number["interval_high"] < 1
        pairs = [a - b for a, b in zip(values[row], values["supervised"], strict=True)]
        expected = None if row == "supervised" else pytest.approx(statistics.mean(pairs))
        assert number.get("difference") == expected
        assert number["seconds"] == pytest.approx(
            statistics.mean(one["seconds"] for one in read[row])
        )
        for percent in (90, 95):
            times = [first_time(run, bound * percent / 100) for run in runs[row]]
            reached = [time for time in times if time is not None]
            assert number[f"reached_{percent}"] == len(reached)
            mean = pytest.approx(statistics.mean(reached)) if len(reached) == 2 else None
            assert number.get(f"seconds_to_{percent}") == mean
    assert float(lines[1]["coverage"]) >= 0
    assert lines[0]["coverage"] == ""


NUMBERS = (
    *("mean", "sd", "interval_low", "interval_high", "difference", "seconds"),
    *("seconds_to_90", "reached_90", "seconds_to_95", "reached_95"),
)


def first_time(run: Path, level: float) -> float | None:
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "validation.accuracy" in row and row["validation.accuracy"] >= level:
            return float(row["seconds"])
    return None


def test_settings_are_those_of_the_suite(finished: Path) -> None:
    config = yaml.read(finished / "members/few/runs/pseudo_label/s1/config.yaml")
    assert (config["steps"], config["labels_per_class"]) == ("4", "2")
    assert config["pseudo_label"]["unlabeled_ratio"] == "2"


def test_the_page_has_every_member_and_loads_nothing(finished: Path) -> None:
    page = (finished / "benchmark.html").read_text(encoding="utf-8")
    assert "for &lt;tests&gt;" in page
    assert all(text in page for text in ("pseudo_label", "python make.py", "mean rank"))
    assert 'href="members/few/report.html"' in page
    assert (finished / "members/few/report.html").exists()
    assert "<script" not in page
    assert "http:" not in page.replace("http://www.w3.org", "")


def test_report_writes_the_same_again(finished: Path) -> None:
    names = ("benchmark.json", "benchmark.csv", "benchmark.html")
    before = {name: (finished / name).read_bytes() for name in names}
    for name in names[1:]:
        (finished / name).unlink()
    assert call("report", finished).returncode == 0
    assert {name: (finished / name).read_bytes() for name in names} == before
    assert "without options" in refusal("report", finished, "--baseline", "supervised")


def test_published_results_give_the_same_tables(
    finished: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(suite.parent)
    copy = tmp_path / "copy"
    script = runpy.run_path(str(ROOT / "benchmarks/publish.py"))
    script["publish"](finished, copy)
    assert not [path for path in copy.rglob("*") if path.suffix in (".pt", ".safetensors")]
    for path in copy.rglob("predictions.npz"):
        ours, theirs = read_arrays(path), read_arrays(finished / path.relative_to(copy))
        for part in ("validation_probabilities", "test_probabilities"):
            assert np.array_equal(ours[part], theirs[part])
    files = [path for path in copy.rglob("*") if path.suffix in (".yaml", ".json", ".jsonl")]
    assert not [path for path in files if str(suite.parent) in path.read_text("utf-8")]
    assert call("report", copy).returncode == 0
    for name in ("benchmark.csv", "benchmark.json"):
        assert (copy / name).read_text() == (finished / name).read_text()
    lines = script["tables"](Benchmark.read(copy / "benchmark.json")).splitlines()
    (row,) = (row for row in results(copy)["few"].rows if row.name == "pseudo_label")
    assert row.score is not None
    assert row.score.deviation is not None
    score = f"{100 * row.score.mean:.1f} ± {100 * row.score.deviation:.1f}"
    (line,) = (line for line in lines if line.startswith(f"| `pseudo_label` | 2 | {score} | "))
    assert f" | {len(row.reached[1].values)} of 2 | " in line


def test_a_run_that_contradicts_itself_is_in_no_result(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    path = copy / "members/few/runs/pseudo_label/s1/summary.json"
    values = json.loads(path.read_text())
    values["test"]["accuracy"] = 0.99
    path.write_text(json.dumps(values))
    assert call("report", copy).returncode == 0
    member = results(copy)["few"]
    assert (member.status, member.rows) == ("failed", ())
    assert "pseudo_label/s1 contradicts itself" in member.reason


def test_a_second_call_adds_and_keeps(finished: Path, suite: Path) -> None:
    before = stamps(finished)
    result = call("benchmark", suite, "--output", finished, "--algo", "pi_model", "--seeds", 1)
    assert result.returncode == 1, result.stderr
    after = stamps(finished)
    added = {str(Path(path).relative_to(finished)) for path in after.keys() - before.keys()}
    assert added == {f"members/few/runs/pi_model/s{seed}/metrics.jsonl" for seed in (0, 1)}
    assert before.items() <= after.items()
    assert [row.name for row in results(finished)["few"].rows][:3] == [*ROWS[:2], "pi_model"]


def test_the_function_does_what_the_command_does(finished: Path, suite: Path) -> None:
    before = stamps(finished)
    result = ssl_toolkit.benchmark(suite, {"device": "cpu"}, output=finished)
    assert (result.folder, result.status) == (finished, 1)
    assert result.report == Benchmark.read(finished / "benchmark.json")
    assert stamps(finished) == before  # its runs are completed
    with pytest.raises(
        ConfigError, match="lr: a suite fixes the settings of its runs; leave it out"
    ):
        ssl_toolkit.benchmark(suite, {"lr": 0.1}, output=finished)


def test_resume_finishes_what_was_interrupted(suite: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    small = suite.parent / "one.yaml"
    small.write_text(SUITE.partition("  elsewhere")[0])
    assert call("benchmark", small, "--output", folder, "--seeds", 3).returncode == 0
    run = folder / "members/few/runs/pseudo_label/s3"
    lines = (run / "metrics.jsonl").read_text()
    (run / "summary.json").unlink()
    kept = stamps(folder / "members/few/runs/supervised")
    result = call("benchmark", "--resume", "--output", folder)
    assert result.returncode == 0, result.stderr
    assert (run / "summary.json").exists()
    assert (run / "metrics.jsonl").read_text().count("\n") == lines.count("\n")
    assert stamps(folder / "members/few/runs/supervised") == kept
    other = suite.parent / "newer.yaml"
    other.write_text(small.read_text().replace("version: 1", "version: 2"))
    assert "contains suite tiny version 1" in refusal("benchmark", other, "--output", folder)


def test_a_dry_run_prints_and_writes_nothing(suite: Path, tmp_path: Path) -> None:
    result = call("benchmark", suite, "--output", tmp_path / "out", "--dry-run", "--seeds", "4-5")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "  rows: supervised, pseudo_label, fully_supervised; seeds: 4, 5" in lines
    assert any(line.startswith("  not run: needs pictures") for line in lines)
    assert any(line.startswith("  refused: ") and "5000" in line for line in lines)
    assert lines[-1].startswith("estimated time: ")
    assert not (tmp_path / "out").exists()


def test_nothing_remains_if_every_member_is_refused(suite: Path, tmp_path: Path) -> None:
    text = SUITE.replace("labels_per_class: 2", "labels_per_class: 6000")
    (tmp_path / "bad.yaml").write_text(text)
    message = refusal("benchmark", tmp_path / "bad.yaml", "--output", tmp_path / "out")
    assert "6000" in message
    assert not (tmp_path / "out" / "suite.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quik",), "suite quik: not found (did you mean"),
        (("quick", "--algo", "simpel"), "simpel"),
        (("quick", "--seeds", "3-1"), "3-1 is no range of seeds"),
        (("quick", "--set", "lr=1"), "a suite fixes the settings"),
        (("quick", "--jobs", "many"), "jobs"),
        (("--resume",), "which folder?"),
    ],
)
def test_a_wrong_command_is_refused(arguments: Any, message: str, tmp_path: Path) -> None:
    more = () if arguments == ("--resume",) else ("--output", tmp_path / "out")
    assert message in refusal("benchmark", *arguments, *more)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["quick", "small", "full"])
def test_the_packaged_suites_are_valid(name: str, tmp_path: Path) -> None:
    suite = find_suite(name)
    assert any(line.split()[0] == name for line in list_suites())
    for member in plan_members(suite.changed(data_root=str(tmp_path)), tmp_path / "out", {}):
        settings = member.comparison.rows[0].config.settings
        assert bool(member.missing) == ("ROOT/" in str(suite.members[member.name].settings))
        assert settings.steps == (300 if settings.pretrained else int(suite.settings["steps"]))
        names = {row.name for row in member.comparison.rows}
        assert ("fully_supervised" in names) == (settings.strangers.data is None)
        ratios = {
            ratio
            for row in member.comparison.rows
            if (ratio := getattr(row.config.algorithm, "unlabeled_ratio", None)) is not None
        }
        assert ratios == {suite.unlabeled_ratio}


def member(name: str, **scores: float) -> MemberResult:
    rows = [
        ResultRow(
            name=row, algorithm=row, is_bound=row == "bound", runs=1, completed=1,
            score=ScoreStats(values={0: score}, mean=score, deviation=None, interval=None),
            difference=None, seconds=None, reached=(), coverage=None, pseudo_label_accuracy=None,
        )
        for row, score in scores.items()
    ]  # fmt: skip
    return MemberResult(name=name, title=name, folder=name, status="completed", rows=tuple(rows))


def test_mean_ranks() -> None:
    result = overall(
        [
            member("one", a=0.5, b=0.7, c=0.7, bound=0.9, only=0.8),
            member("two", a=0.9, b=0.6, c=0.5, bound=0.9),
            MemberResult(name="none", title="", folder="", status="not run"),
        ]
    )
    assert {row.name: row.ranks for row in result.rows} == {
        "b": {"one": 1.5, "two": 2},
        "a": {"one": 3, "two": 1},
        "c": {"one": 1.5, "two": 3},
    }
    assert [row.mean_rank for row in result.rows] == [1.75, 2, 2.25]
    assert (result.members, result.left_out) == (("one", "two"), ("only",))
    of_one = overall([member("one", a=0.3, b=0.1 + 0.2)]).rows  # equal but for the last bit
    assert [row.mean_rank for row in of_one] == [1.5, 1.5]
