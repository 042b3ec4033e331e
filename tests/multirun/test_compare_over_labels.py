"""`compare --labels-per-class 1,2,4`: one folder, nested labels, tables and page of the curve."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process import call, refusal

import ssl_toolkit

CURVE = ("--algos", "simple,supervised", "--labels-per-class", "1,2,4", "--seeds", "0,1")
SHARED = ("--dataset", "digits", "--steps", 2, "--eval-every", 2, "--batch-size", 8)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def _here() -> Any:
    """Run the jobs in this process, which is faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssl_toolkit.multirun.compare.registered_here", lambda _: "a test")
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curve") / "out"
    result = call("compare", *CURVE, *SHARED, "--output", folder)
    assert result.returncode == 0, result.stderr + result.stdout
    assert "simple: labels per class 1: 0." in result.stdout
    assert "per class of supervised" in result.stdout
    return folder


def test_the_labels_of_a_seed_are_nested(finished: Path) -> None:
    for seed in (0, 1):
        splits = [
            read(finished / f"runs/{method}_{count}_per_class/s{seed}/split.json")
            for method in ("simple", "supervised")
            for count in (1, 2, 4)
        ]
        labeled = [set(split["labeled"]) for split in splits]
        assert [len(one) for one in labeled] == [10, 20, 40] * 2
        assert labeled[0] < labeled[1] < labeled[2]
        assert labeled[:3] == labeled[3:]
        assert all(split["test"] == splits[0]["test"] for split in splits)


def test_json_has_the_curve_and_its_points(finished: Path) -> None:
    tree = read(finished / "comparison.json")
    assert tree["curve"]["counts"] == [1, 2, 4]
    assert (tree["curve"]["key"], tree["curve"]["score"]) == ("labels_per_class", "test.accuracy")
    assert [(row["method"], row["labels"]) for row in tree["rows"]] == [
        (method, count) for count in (1, 2, 4) for method in ("simple", "supervised")
    ]
    assert all(row["overrides"] == {} for row in tree["rows"])
    assert "labels_per_class" not in tree["shared"]
    for row in tree["rows"]:
        interval = row["scores"]["test.accuracy"]["interval"]
        assert interval is None or 0 <= interval[0] <= interval[1] <= 1


def test_the_tables_and_the_page_show_it(finished: Path) -> None:
    table = (finished / "comparison.md").read_text(encoding="utf-8")
    assert "## Label curve" in table
    assert "| labels per class | 1 | 2 | 4 |" in table
    assert "by permission" not in table
    with (finished / "comparison.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["labels"]) for row in rows][:2] == [("simple", "1")] * 2
    page = (finished / "report.html").read_text(encoding="utf-8")
    for text in (
        '<section id="labels"',
        '<svg class="chart" viewBox="0 0 480 236" role="img" aria-labelledby="label-curve-t',
        "Test accuracy over labels per class</title>",
        "The highest mean test accuracy by labels per class: ",
    ):
        assert text in page
    assert "NaN" not in page


def test_a_second_call_adds_a_number_and_repeats_nothing(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    before = {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/*/metrics.jsonl")}
    assert len(before) == 12
    shutil.rmtree(copy / "runs/supervised_4_per_class/s1")
    more = ("--algos", "simple,supervised", "--labels-per-class", "1,2,3,4", "--seeds", "0,1")
    result = call("compare", *more, *SHARED, "--output", copy, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["curve"]["counts"] == [1, 2, 3, 4]
    after = {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/*/metrics.jsonl")}
    assert len(after) == 16
    kept = [path for path in before if path.parent.parent.name != "supervised_4_per_class"]
    assert all(after[path] == before[path] for path in kept)


def test_a_report_has_another_baseline(finished: Path, tmp_path: Path) -> None:
    result = call("report", finished, "--baseline", "simple", "--output", tmp_path / "other")
    assert result.returncode == 0, result.stderr
    assert read(tmp_path / "other/comparison.json")["baseline"] == "simple"
    table = (tmp_path / "other/comparison.md").read_text(encoding="utf-8")
    assert "how many labels of simple" in table
    message = refusal("report", finished, "--baseline", "fixmatch", "--output", tmp_path / "no")
    assert "rows: simple, supervised" in message


def test_a_failed_row_costs_only_itself(tmp_path: Path) -> None:
    bad = {"algo": "simple", "simple": {"unsupervised_weight": 3e38, "rampup_steps": 0}}
    bad["simple"] |= {"unsupervised_loss": "cross_entropy", "confidence_threshold": 0.0}
    result = ssl_toolkit.compare(
        {
            "algos": "supervised",
            "rows": {"bad": bad},
            "labels_per_class": [1, 2],
            "seeds": [0],
            "dataset": "digits",
            "steps": 2,
            "output": str(tmp_path / "failing"),
        }
    )
    assert result.status == 1
    assert result.comparison.curve is not None
    assert result.comparison.curve.worth == ()
    assert [bool(row.scores) for row in result.rows] == [True, False, True, False]
    assert '<section id="labels"' in (result.folder / "report.html").read_text(encoding="utf-8")


def test_too_many_labels_are_refused_before_training(tmp_path: Path) -> None:
    wrong = ("--labels-per-class", "1,100000", "--seeds", "0", "--algos", "supervised")
    message = refusal("compare", *wrong, *SHARED, "--output", tmp_path / "none")
    assert "of the 100000 labeled images requested" in message
    assert not (tmp_path / "none").exists()


def test_a_dry_run_has_no_json() -> None:
    assert "leave --json out" in refusal("compare", *CURVE, *SHARED, "--dry-run", "--json")


def test_a_table_of_published_rows_has_no_curve() -> None:
    rows = ("reproduce", "usb_cifar100", "--row", "usb_cifar100/labels400-fixmatch")
    assert "several numbers of labels" in refusal(*rows, "--labels-per-class", "1,2")
