"""The published results of a suite: anyone's report of them is the published one."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest
from in_process import call

from ssl_toolkit.runs.predictions import read_arrays
from ssl_toolkit.runs.summary import RunSummary
from ssl_toolkit.suites.results import Benchmark

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs/results/small-1"


def test_a_report_gives_the_published_tables(tmp_path: Path) -> None:
    copy = tmp_path / "small"
    shutil.copytree(PUBLISHED, copy)
    (copy / "benchmark.csv").unlink()
    assert call("report", copy).returncode == 0
    for name in ("benchmark.csv", "benchmark.json"):
        assert (copy / name).read_text("utf-8") == (PUBLISHED / name).read_text("utf-8")


def test_the_page_has_these_tables() -> None:
    tables = runpy.run_path(str(ROOT / "benchmarks/publish.py"))["tables"]
    page = (ROOT / "docs/results/small.md").read_text("utf-8")
    assert page.endswith(tables(Benchmark.read(PUBLISHED / "benchmark.json")))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the sdist has no predictions")
def test_predictions_have_the_published_accuracies() -> None:
    runs = [path.parent for path in PUBLISHED.glob("members/*/runs/*/s*/config.yaml")]
    assert len(runs) > 100
    for run in runs:
        arrays = read_arrays(run / "predictions.npz")
        summary = RunSummary.read(run / "summary.json")
        for part, expected in (("validation", summary.validation), ("test", summary.test)):
            labels = arrays[f"{part}_labels"]
            assert (expected is None) == (len(labels) == 0)
            if expected is not None:
                correct = arrays[f"{part}_probabilities"].argmax(axis=1) == labels
                assert correct.mean() == pytest.approx(expected.accuracy)


def test_no_path_of_a_machine_is_published() -> None:
    for file in PUBLISHED.rglob("*"):
        if file.suffix in (".yaml", ".json", ".csv", ".html"):
            text = file.read_text("utf-8")
            assert "/home/" not in text, file
            assert str(ROOT) not in text, file
