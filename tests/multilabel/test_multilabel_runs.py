"""Runs of --task multilabel from training to predictions, and what they refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import call, refusal
from multilabel_data import make_manifest
from safetensors.torch import load_file

from ssl_toolkit import evaluate, load_model
from ssl_toolkit.data.load import read_data
from ssl_toolkit.runs.predictions import read_arrays

COMMON = ("--task", "multilabel", "--image-size", 16, "--backbone", "wrn_10_1", "--device", "cpu")
FEW = ("--labels-per-class", 6, "--val-fraction", 0.3, "--steps", 6, "--eval-every", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    make_manifest(folder)
    (folder / "shares.csv").write_text("class,share\na,0.5\nb,0.5\n")
    return folder


def run(folder: Path, name: str, *arguments: object) -> Path:
    """Run an algorithm; return the folder of the run."""
    output = folder / name
    result = call("run", "--data", folder / "images.csv", *COMMON, *FEW, "--output", output,
                  *arguments)  # fmt: skip
    assert result.returncode == 0, result.stderr
    return output


@pytest.fixture(scope="module")
def finished(folder: Path) -> Path:
    return run(folder, "finished", "--algo", "pseudo_label")


def summary_of(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return result


def test_a_run_is_scored_and_consistent(finished: Path) -> None:
    summary = summary_of(finished)
    assert summary["status"] == "completed"
    assert summary["validation"] is None
    assert summary["test"] is None
    test = summary["multilabel"]["test"]
    assert test["count"] == 20
    assert 0 < test["map"] <= 1
    assert [*test["per_class"]] == ["blue", "green", "red"]
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if "validation.map" in row]
    assert len(evaluations) == 2
    assert all(
        0 <= row["validation.map"] <= 1 and row["validation.loss"] > 0 for row in evaluations
    )
    assert summary["best_step"] == max(evaluations, key=lambda row: row["validation.map"])["step"]
    assert call("check-run", finished).returncode == 0
    card = (finished / "model" / "README.md").read_text()
    assert "An image has any number of classes." in card
    assert "has = model.has_classes(probabilities)" in card
    assert "sigmoid" in card
    assert "softmax" not in card


def test_changed_predictions_are_noticed(folder: Path, finished: Path) -> None:
    arrays = read_arrays(finished / "predictions.npz")
    assert arrays["test_labels"].shape == arrays["test_probabilities"].shape == (20, 3)
    path = finished / "predictions.npz"
    content = path.read_bytes()
    changed = arrays | {"test_labels": 1 - arrays["test_labels"], "format": 1}
    np.savez_compressed(path, **changed)
    result = call("check-run", finished)
    path.write_bytes(content)
    assert result.returncode == 1
    assert "its test scores are not those of summary.json" in result.stdout + result.stderr


@pytest.mark.parametrize("algorithm", ["supervised", "fully_supervised"])
def test_other_algorithms(folder: Path, algorithm: str) -> None:
    output = run(folder, algorithm, "--algo", algorithm)
    assert summary_of(output)["multilabel"]["test"]["count"] == 20
    config = json.loads((output / "model" / "config.json").read_text())
    assert config["task"] == "multilabel"
    assert len(config["thresholds"]) == 3


def test_a_resumed_run_equals_an_uninterrupted_one(folder: Path, finished: Path) -> None:
    output = run(folder, "stopped", "--algo", "pseudo_label", "--time-limit", 1e-9)
    assert summary_of(output)["status"] == "interrupted"
    assert call("resume", output, "--time-limit", 60).returncode == 0
    one, two = (load_file(path / "model" / "model.safetensors") for path in (finished, output))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert summary_of(finished)["multilabel"] == summary_of(output)["multilabel"]


def test_changed_sets_of_classes_are_noticed(tmp_path: Path) -> None:
    """Also where the order of the distinct sets stays the same."""
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3)).astype(np.uint8)
    labels = np.eye(3, dtype=np.int64)[np.arange(60) % 3]
    splits = np.repeat(["train", "test"], 30)
    arrays = {"images": images, "classes": np.array(["a", "b", "c"]), "splits": splits}
    data, output = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, labels=labels, **arrays)
    small = (*COMMON, "--steps", 1, "--labels-per-class", 2, "--algo", "supervised")
    assert call("run", "--data", data, *small, "--output", output).returncode == 0
    assert call("check-run", output).returncode == 0
    labels[labels[:, 1] == 1, 2] = 1  # {b} becomes {b, c}
    np.savez(data, labels=labels, **arrays)
    result = call("check-run", output)
    assert result.returncode == 1
    assert "10 of 30 test images have another label" in result.stdout + result.stderr
    assert "have another label" in refusal("resume", output, "--steps", 2)


def test_predictions_have_the_classes_and_all_probabilities(folder: Path, finished: Path) -> None:
    table = folder / "table.csv"
    (folder / "broken.png").write_text("none")
    images = (folder / "images" / "0.png", folder / "images" / "1.png", folder / "broken.png")
    assert call("predict", finished, *images, "--output", table).returncode == 1
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == ["path", "classes", "error", "p_blue", "p_green", "p_red"]
    model = load_model(finished)
    probs = model.predict([*images[:2]])
    stored = read_arrays(finished / "predictions.npz")["test_probabilities"][:2]
    assert np.allclose(probs, stored, atol=1e-5)
    for row, values in zip(rows, probs, strict=False):
        names = [
            name
            for name, p, least in zip(model.classes, values, model.thresholds, strict=True)
            if p >= least
        ]
        assert row["classes"] == "|".join(names)
        assert [float(row[f"p_{name}"]) for name in model.classes] == pytest.approx([*values])
    assert rows[2]["error"]
    assert rows[2]["p_red"] == ""


def test_the_model_is_scored_again_on_its_data_and_on_other_data(
    folder: Path, finished: Path
) -> None:
    expected = summary_of(finished)["multilabel"]["test"]
    for result in (evaluate(finished), evaluate(finished / "model", folder / "images.csv")):
        scores = result.multilabel["test"]
        assert scores is not None
        assert scores.map == pytest.approx(expected["map"])
        assert scores.micro_f1 == pytest.approx(expected["micro_f1"])
        assert result.test is None
    assert "test mAP: " in call("evaluate", finished).stdout
    as_json = json.loads(call("evaluate", finished, "--json").stdout)
    assert as_json["test"]["map"] == pytest.approx(expected["map"])
    message = refusal("evaluate", finished, "--confusion", folder / "c.png")
    assert "a model of --task multilabel has no confusion matrix" in message


def test_an_exported_program_contains_the_sigmoid(folder: Path, finished: Path) -> None:
    path = folder / "model.pt2"
    result = call("export", finished, "--format", "torch-export", "--output", path)
    assert result.returncode == 0, result.stderr
    extra = {"metadata.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = load_model(finished)
    assert torch.allclose(program(images), model(images), atol=1e-5)
    assert not torch.allclose(model(images).sum(dim=1), torch.ones(3), atol=1e-2)
    described = json.loads(extra["metadata.json"])
    assert described["thresholds"] == list(model.thresholds)
    assert described["inside"].endswith("sigmoid")


def test_an_onnx_program_contains_the_sigmoid(folder: Path, finished: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = folder / "model.onnx"
    result = call("export", finished, "--format", "onnx", "--output", path)
    assert result.returncode == 0, result.stderr
    session = onnxruntime.InferenceSession(path)
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    (probabilities,) = session.run(["probabilities"], {"images": images.numpy()})
    model = load_model(finished)
    assert np.allclose(probabilities, model(images), atol=1e-5)
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["thresholds"]) == list(model.thresholds)
    assert json.loads(described["classes"]) == list(model.classes)
    assert described["inside"].endswith("sigmoid")


def test_without_validation_the_thresholds_are_one_half(folder: Path) -> None:
    output = run(folder, "plain", "--algo", "supervised", "--val-fraction", 0)
    assert load_model(output).thresholds == (0.5, 0.5, 0.5)
    assert summary_of(output)["multilabel"]["validation"] is None


@pytest.mark.slow
def test_a_comparison_is_ranked_by_the_mean_average_precision(folder: Path) -> None:
    output = folder / "compared"
    result = call("compare", "--data", folder / "images.csv", *COMMON, *FEW, "--algos",
                  "supervised,pseudo_label", "--seeds", "0,1", "--output", output)  # fmt: skip
    assert result.returncode == 0, result.stderr
    comparison = json.loads((output / "comparison.json").read_text())
    assert comparison["ranked_by"] == "test.map"
    for row in comparison["rows"]:
        for seed, value in row["scores"]["test.map"]["values"].items():
            run_folder = next(Path(r["folder"]) for r in row["runs"] if str(r["seed"]) == seed)
            summary = summary_of(output / run_folder)
            assert value == summary["multilabel"]["test"]["map"]
    assert comparison["rows"][1]["difference"] is not None
    markdown = (output / "comparison.md").read_text()
    for title in ("mAP", "micro F1", "macro F1", "all classes right", "difference to supervised"):
        assert title in markdown
    assert "| accuracy |" not in markdown
    assert "runs without test images" not in markdown
    page = (output / "report.html").read_text()
    assert "highest mean test mAP" in page
    assert "Test average precision of each class" in page
    assert "Mean average precision on the validation images" in page
    assert "Mistakes are not shown for images with several classes." in page
    with (output / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["test.map"] and not row["test.accuracy"] for row in rows)
    # A page of one run.
    assert call("report", output / "runs" / "supervised" / "s0").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--algo", "fixmatch"), "--algo fixmatch supports multiclass only; use fully_supervised"),
        (("--algo", "simple"), "--algo simple supports multiclass only"),
        (("--algo", "pseudo_label", "--imbalance", 5), "--imbalance supports --task multiclass"),
        (("--algo", "pseudo_label", "--imbalance-labels", 5), "--imbalance-labels supports"),
        (("--algo", "pseudo_label", "--imbalance-pool", 5), "--imbalance-pool supports --task"),
        (("--algo", "pseudo_label", "--prior", "shares.csv"), "--prior supports --task multiclass"),
        (("--algo", "auto"), "--algo auto supports --task multiclass only"),
        (("--algo", "supervised", "--set", "sampler=balanced"), "sampler=balanced supports"),
        (
            ("--algo", "supervised", "--set", "augment.weak=ctaugment"),
            "augment.weak=ctaugment supports",
        ),
    ],
)
def test_what_does_not_apply_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    command = ("run", "--data", "images.csv", *COMMON, *arguments)
    assert message in refusal(*command, "--output", folder / "refused")
    assert message in refusal(*command, "--dry-run")
    assert not (folder / "refused").exists()


def test_commands_for_one_class_refuse_the_model(folder: Path, finished: Path) -> None:
    message = "needs a model with one class per image (--task multiclass)"
    pool = folder / "images"
    assert message in refusal("pseudo-label", finished, pool, "--output", folder / "p.csv")
    assert not (folder / "p.csv").exists()
    message = refusal("label", "next", finished, "--budget", 2, "--method", "margin")
    assert "chosen for one class per image only" in message


def test_bars_in_labels_are_pointed_out(folder: Path) -> None:
    table = read_data(folder / "images.csv")
    assert any("--task multilabel reads several classes per image" in n for n in table.notes)
    assert not any("|" in n for n in read_data(folder / "images.csv", multilabel=True).notes)


def test_a_linear_probe_of_a_published_backbone(folder: Path) -> None:
    output = folder / "probe"
    result = call("run", "--task", "multilabel", "--data", folder / "images.csv", "--algo",
                  "linear_probe", "--backbone", "tf_efficientnet_lite0", "--pretrained",
                  "--image-size", 32, "--labels-per-class", 8, "--output", output)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert summary_of(output)["fitted"]
    assert summary_of(output)["multilabel"]["test"]["map"] > 0.5
    assert call("check-run", output).returncode == 0


def test_a_published_backbone_is_trained_from_a_head_of_zeros(folder: Path) -> None:
    output = folder / "frozen"
    result = call("run", "--task", "multilabel", "--data", folder / "images.csv", "--algo",
                  "pseudo_label", "--backbone", "tf_efficientnet_lite0", "--pretrained",
                  "--image-size", 32, *FEW, "--output", output)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert summary_of(output)["probe"] is None
    assert "head_init: zero" in (output / "config.yaml").read_text()


def test_named_data_sets_have_one_class(tmp_path: Path) -> None:
    arguments = ("--dataset", "digits", "--task", "multilabel", "--algo", "supervised")
    message = refusal("run", *arguments, "--output", tmp_path / "r")
    assert "the images of digits have one class each: give --task multiclass" in message
