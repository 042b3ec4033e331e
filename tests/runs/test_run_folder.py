"""The folder that a run leaves behind, and the same run once more."""

from __future__ import annotations

import importlib
import math
import os
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import Command, call, refusal
from run_files import DIGITS, hashes, metrics, strict_json, summary, weights

import ssl_toolkit
from ssl_toolkit import registry
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.runs.record import distributions

FILES = {
    "config.yaml",
    "record.json",
    "split.json",
    "metrics.jsonl",
    "metrics.csv",
    "log.txt",
    "summary.json",
    "predictions.npz",
    "prior.json",
    "checkpoints/last.pt",
    "checkpoints/last-1.pt",
    "checkpoints/best.pt",
    "model/model.safetensors",
    "model/config.json",
    "model/README.md",
}


def assert_same_run(one: Path, other: Path) -> None:
    assert metrics(one) == metrics(other)
    for which in ("last", "best"):
        ours, theirs = weights(one, which), weights(other, which)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
    timings = ("seconds", "images_per_second")
    left, right = summary(one), summary(other)
    assert {**left, **dict.fromkeys(timings)} == {**right, **dict.fromkeys(timings)}
    assert (one / "split.json").read_bytes() == (other / "split.json").read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run; not to be written to."""
    folder = tmp_path_factory.mktemp("commands") / "run"
    result = call(*DIGITS, "--output", folder)
    assert result.returncode == 0, result.stderr
    return folder


# --- a run and its folder -----------------------------------------------------------------------


def test_the_folder_contains_the_documented_files(run: Path) -> None:
    assert set(hashes(run)) == FILES


def test_the_summary(run: Path) -> None:
    s = summary(run)
    assert s["status"] == "completed"
    assert (s["algorithm"], s["backbone"], s["seed"]) == ("simple", "wrn_10_1", 0)
    assert (s["profile"], s["steps"]) == ("paper", 4)
    assert s["counts"] == {"labeled": 40, "unlabeled": 1253, "validation": 145, "test": 359}
    assert sum(s["counts"].values()) == 1797
    assert s["classes"] == [str(n) for n in range(10)]
    accuracies = {
        row["step"]: row["validation.accuracy"]
        for row in metrics(run)
        if "validation.accuracy" in row
    }
    highest = max(accuracies.values())
    assert s["best_step"] == min(step for step, a in accuracies.items() if a == highest)
    assert s["convergence_step"] == min(t for t, a in accuracies.items() if a >= 0.95 * highest)
    assert s["validation"]["accuracy"] == highest
    for part, count in (("validation", 145), ("test", 359)):
        scores = s[part]
        assert scores["count"] == count
        assert sum(one["count"] for one in scores["per_class"].values()) == count
        assert list(scores["per_class"]) == s["classes"]
        right = sum(one["accuracy"] * one["count"] for one in scores["per_class"].values())
        assert scores["accuracy"] == pytest.approx(right / count)
        balanced = np.mean([one["accuracy"] for one in scores["per_class"].values()])
        assert scores["balanced_accuracy"] == pytest.approx(balanced)
        for key in ("macro_f1", "ece", "nll"):
            assert math.isfinite(scores[key])
    assert s["fingerprint"]
    assert s["seconds"] > 0
    assert s["images_per_second"] == pytest.approx(4 * 2 * 8 / s["seconds"])


def test_the_rows_of_metrics(run: Path) -> None:
    rows = metrics(run, timings=True)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        names = ("supervised", "unsupervised", "pair")
        losses = {"train.loss", *(f"train.loss.{name}" for name in names)}
        assert losses | {"lr", "seconds", "images_per_second"} <= row.keys()
        assert all(type(value) in (int, float) for value in row.values())
        assert row["lr"] == 0.002
        assert ("validation.accuracy" in row) == (row["step"] % 2 == 0)


def test_the_predictions_are_those_that_were_scored(run: Path) -> None:
    with np.load(run / "predictions.npz", allow_pickle=False) as arrays:
        assert list(arrays["classes"]) == summary(run)["classes"]
        for part in ("validation", "test"):
            probs, labels = arrays[f"{part}_probabilities"], arrays[f"{part}_labels"]
            assert probs.shape == (len(labels), 10)
            assert np.allclose(probs.sum(axis=1), 1, atol=1e-5)
            accuracy = float((probs.argmax(axis=1) == labels).mean())
            assert accuracy == pytest.approx(summary(run)[part]["accuracy"])


def test_the_record_has_the_versions_of_the_dependencies_that_compute(run: Path) -> None:
    text = (Path(ssl_toolkit.__file__).parents[1] / "pyproject.toml").read_text("utf-8")
    declared = {
        re.split("[^a-z-]", requirement)[0]
        for requirement in tomllib.loads(text)["project"]["dependencies"]
    }
    without_influence = {
        "click", "filelock", "importlib-metadata", "jinja", "markupsafe", "pydantic", "pyyaml",
        "rich", "safetensors", "torchvision", "typing-extensions",
    }  # fmt: skip
    record = strict_json((run / "record.json").read_text("utf-8"))
    recorded = {*record["versions"]} - {"python", "ssl-toolkit"}
    assert recorded == declared - without_influence


def test_the_record(run: Path) -> None:
    record = strict_json((run / "record.json").read_text("utf-8"))
    assert record["versions"]["torch"].partition("+")[0] == version("torch").partition("+")[0]
    assert record["versions"]["ssl-toolkit"] == ssl_toolkit.__version__
    assert record["fingerprint"] == summary(run)["fingerprint"]
    assert record["device"].startswith("cpu")
    assert record["plugins"]["algorithms: simple"] == f"ssl-toolkit {ssl_toolkit.__version__}"
    assert any(name.startswith("backbones: wrn_10_1") for name in record["plugins"])


def test_a_plugin_is_recorded_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "theirs" / "method.py"
    code.parent.mkdir()
    code.write_text("class Method: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = registry.Entry("algorithms", "method", "their-package", "1.0", "theirs.method:Method")
    monkeypatch.setattr(registry, "has", lambda group, name: name == "method")
    monkeypatch.setattr(registry, "find", lambda group, name: entry)
    settings = Settings(algo="method")
    before = distributions(settings)["algorithms: method"]
    assert re.fullmatch(r"their-package 1\.0 \(code [0-9a-f]{8}\)", before)
    code.write_text("class Method: pass\n")
    assert distributions(settings)["algorithms: method"] != before


def test_a_class_of_this_process_is_recorded_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(name: str, loss: str) -> str:
        (tmp_path / f"{name}.py").write_text(
            f"class Base:\n    def loss(self):\n        return {loss}\n\n\n"
            "class Method(Base):\n    pass\n"
        )
        plugin = importlib.import_module(name).Method
        entry = registry.Entry(
            "algorithms", "method", registry.NOTEBOOK, "", f"{name}:Method", plugin
        )
        monkeypatch.setattr(registry, "find", lambda group, name: entry)
        return distributions(Settings(algo="method"))["algorithms: method"]

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "has", lambda group, name: name == "method")
    first, same, other = recorded("one", "1"), recorded("two", "1"), recorded("three", "2")
    assert re.fullmatch(r"\(this session\) \(code [0-9a-f]{8}\)", first)
    assert (same == first, other == first) == (True, False)


def test_checkpoints_are_tensors_and_plain_types(run: Path) -> None:
    for which in ("last", "best"):
        state = torch.load(run / "checkpoints" / f"{which}.pt", weights_only=True)
        assert state["backbone"] == "wrn_10_1"
        assert state["classes"] == summary(run)["classes"]
    assert not any(name.startswith(("module.", "_orig_mod.")) for name in weights(run))


def test_the_log_is_what_was_printed(run: Path, tmp_path: Path) -> None:
    printed = call(*DIGITS, "--algo", "supervised", "--output", tmp_path / "new")
    assert (tmp_path / "new" / "log.txt").read_text("utf-8") == printed.stdout
    quiet = call(*DIGITS, "--algo", "supervised", "--quiet", "--output", tmp_path / "quiet")
    assert "\n   2  " not in quiet.stdout
    assert "test accuracy" in quiet.stdout
    assert "\n   2  " in (tmp_path / "quiet" / "log.txt").read_text("utf-8")


def test_evaluate_gives_the_scores_of_the_summary(run: Path) -> None:
    before = hashes(run)
    result = call("evaluate", run, "--json")
    assert result.returncode == 0, result.stderr
    actual = strict_json(result.stdout)
    for part in ("validation", "test"):
        assert np.sum(actual[part].pop("confusion")) == actual[part]["count"]
    assert actual == {k: summary(run)[k] for k in ("validation", "test")}
    output = call("evaluate", run).stdout
    assert f"test accuracy: {summary(run)['test']['accuracy']:.4f} of 359 images" in output
    assert hashes(run) == before


def test_resume_of_a_finished_run_changes_nothing(run: Path) -> None:
    before = hashes(run)
    result = call("resume", run)
    assert result.returncode == 0
    assert "finished" in result.stdout
    assert hashes(run) == before


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_a_path_that_is_not_a_run_folder(command: str, tmp_path: Path) -> None:
    empty, damaged, foreign = (tmp_path / name for name in ("empty", "damaged", "foreign"))
    for folder in (empty, damaged, foreign):
        folder.mkdir()
    (damaged / "summary.json").write_text('{"status": ')
    (foreign / "summary.json").write_text("[1]")
    for folder in (empty, damaged, foreign, tmp_path / "gone", Path(__file__)):
        assert str(folder) in refusal(command, folder)


# --- the same again -----------------------------------------------------------------------------


def test_another_process_gives_the_same_run(run: Path, command: Command, tmp_path: Path) -> None:
    result = command(*DIGITS, "--output", tmp_path / "again")
    assert (result.returncode, result.stderr) == (0, "")
    # The output folder is the only difference of the two configurations.
    assert_same_run(run, tmp_path / "again")


def test_its_configuration_repeats_a_run(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    result = call("run", "--config", run / "config.yaml", "--output", other)
    assert (result.returncode, result.stderr) == (0, "")
    assert_same_run(run, other)
    ours, theirs = ((r / "config.yaml").read_text("utf-8") for r in (run, other))
    assert theirs == ours.replace(f"output: {run}", f"output: {other}")


def test_another_seed_gives_another_run(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert call(*DIGITS, "--seed", "1", "--output", other).returncode == 0
    assert metrics(run) != metrics(other)
    ours, theirs = weights(run), weights(other)
    assert not all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert read_split(run) != read_split(other)
    assert summary(other)["fingerprint"] == summary(run)["fingerprint"]


def read_split(run: Path) -> Any:
    return strict_json((run / "split.json").read_text("utf-8"))


def test_a_split_is_used_as_it_is(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    result = call(*DIGITS, "--seed", "1", "--split", run / "split.json", "--output", other)
    assert (result.returncode, result.stderr) == (0, "")
    assert read_split(other) == read_split(run)
    assert metrics(run) != metrics(other)


def test_runs_get_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert call(*DIGITS, "--algo", "supervised", "--steps", "1").returncode == 0
    assert sorted(os.listdir("runs")) == ["supervised-digits-s0", "supervised-digits-s0-2"]


def test_nothing_is_written_before_a_run_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in (["--labels-per-class", "1000"], ["--backbone", "no_such_net"], ["--device", "x"],
                  ["--data", "gone"], ["--dataset", "digits", "--data", "."], ["--split", "gone"],
                  ["--weights", "gone.safetensors"]):  # fmt: skip
        arguments = wrong if "--data" in wrong else ["--dataset", "digits", *wrong]
        assert wrong[0].lstrip("-") in refusal(
            "run", "--steps", "1", "--batch-size", "4", *arguments
        )
    assert call("run", "--dry-run").returncode == 0
    assert os.listdir(tmp_path) == []
