"""Faults that people met when predicting and evaluating; numbers are those of the reports' list."""

from __future__ import annotations

import csv
import json
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import Command, call, refusal
from PIL import Image

RUN = (
    "run", "--algo", "supervised", "--backbone", "test_resnet", "--image-size", "32", "--steps",
    "2", "--eval-every", "1", "--batch-size", "4", "--workers", "0", "--device", "cpu", "--seed",
    "1",
)  # fmt: skip
Row = dict[str, str]


@pytest.fixture(scope="module")
def run(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the clean data; not to be written to."""
    folder = tmp_path_factory.mktemp("cases") / "run"
    result = call(*RUN, "--data", cases / "c00_base", "--output", folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def colors(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tells plain colors apart."""
    folder = tmp_path_factory.mktemp("colors") / "run"
    result = call(*RUN, "--steps", "60", "--data", cases / "c11_numeric_names", "--output", folder)
    assert result.returncode == 0, result.stderr
    return folder


def predicted(*arguments: object) -> dict[str, Row]:
    """Rows by the name of the file; with probabilities."""
    result = call("predict", *arguments, "--probabilities", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    return {Path(row["path"]).name: row for row in csv.DictReader(StringIO(result.stdout))}


def probabilities(row: Row) -> list[float]:
    return [float(value) for name, value in row.items() if name.startswith("p_")]


def assert_twins(rows: dict[str, Row], pairs: list[list[str]]) -> None:
    for one, other in pairs:
        assert rows[one]["class"] == rows[other]["class"], one
        np.testing.assert_allclose(
            probabilities(rows[one]), probabilities(rows[other]), atol=1e-5, err_msg=one
        )


def facts(folder: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((folder / "EXPECT.json").read_text("utf-8"))
    return result


# --- 4, 5, 6: forms of images -----------------------------------------------------------------


def test_04_rotated_images(run: Path, cases: Path, tmp_path: Path) -> None:
    rows = predicted(run, cases / "c04_exif" / "predict")
    pairs = facts(cases / "c04_exif")["same_prediction"]
    assert len(pairs) == 8  # type: ignore[arg-type]
    assert_twins(rows, pairs)  # type: ignore[arg-type]
    # The model can tell an image from itself lying on its side: the test could fail.
    with Image.open(cases / "c04_exif" / "predict" / "o6.jpg") as image:
        Image.fromarray(np.asarray(image)).save(tmp_path / "lying.png")
    lying = predicted(run, tmp_path / "lying.png")["lying.png"]
    gap = np.subtract(probabilities(lying), probabilities(rows["o6.jpg"]))
    assert np.abs(gap).max() > 1e-4


def test_05_color_modes(run: Path, cases: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = cases / "c05_modes" / "predict"
    expected = facts(cases / "c05_modes")
    rows = predicted(run, folder)
    assert_twins(rows, expected["same_prediction"])  # type: ignore[arg-type]
    again = predicted(run, folder)
    for name in expected["must_not_crash"]:  # type: ignore[attr-defined]
        assert sum(probabilities(rows[name])) == pytest.approx(1, abs=1e-4)
        assert rows[name] == again[name]
    assert not recwarn.list


def test_06_odd_sizes(run: Path, cases: Path) -> None:
    folder = cases / "c06_ext_sizes" / "unlabeled"
    rows = predicted(run, *(folder / f"{name}.png" for name in ("one_px", "wide", "tall", "odd")))
    assert len(rows) == 4
    for row in rows.values():
        assert sum(probabilities(row)) == pytest.approx(1, abs=1e-4)


# --- 11: class order ----------------------------------------------------------------------------


def test_11_names_not_numbers(colors: Path, cases: Path, tmp_path: Path) -> None:
    summary = json.loads((colors / "summary.json").read_text("utf-8"))
    expected = facts(cases / "c11_numeric_names")
    assert summary["classes"] == expected["classes_sorted_as_text"]
    assert summary["test"]["accuracy"] == 1
    assert [*summary["test"]["per_class"]] == summary["classes"]
    # Neither the data nor its folder's name is there for the model.
    alone = shutil.copytree(colors / "model", tmp_path / "alone")
    images = tmp_path / "images"
    images.mkdir()
    color_of = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255),
                 "yellow": (255, 255, 0)}  # fmt: skip
    for name, color in color_of.items():
        shutil.copy(next((cases / "c11_numeric_names" / "test").glob("*/*.png")), images)
        Image.new("RGB", (32, 32), tuple(int(0.8 * c) for c in color)).save(images / f"{name}.png")
    names = expected["color_of"]
    rows = predicted(alone, *(images / f"{color}.png" for color in color_of))
    for number, color in names.items():  # type: ignore[attr-defined]
        assert rows[f"{color}.png"]["class"] == number
    shown = predicted(colors, cases / "c11_numeric_names" / "test" / "10")
    assert {row["class"] for row in shown.values()} == {"10"}
    assert [name for name in shown["t_0.png"] if name.startswith("p_")] == [
        "p_1", "p_10", "p_2", "p_20"
    ]  # fmt: skip


# --- 12: no class folders -----------------------------------------------------------------------


def test_12_a_flat_folder_a_nested_one_and_one_file(run: Path, cases: Path) -> None:
    flat = predicted(run, cases / "c12_unlabeled_flat" / "unlabeled")
    nested = predicted(run, cases / "c12b_unlabeled_nested" / "unlabeled")
    assert len(flat) == 12
    assert flat.keys() == nested.keys()
    for name, row in flat.items():
        assert {**row, "path": ""} == {**nested[name], "path": ""}
    alone = predicted(run, cases / "c12_unlabeled_flat" / "unlabeled" / "u_000.png")
    assert alone.keys() == {"u_000.png"}
    np.testing.assert_allclose(
        probabilities(alone["u_000.png"]), probabilities(flat["u_000.png"]), atol=1e-5
    )


# --- 13: names ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_13_names_in_an_ascii_locale(cases: Path, command: Command, tmp_path: Path) -> None:
    data = cases / "c13_names"
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
                    "PYTHONIOENCODING": ""}  # fmt: skip
    trained = call(*RUN, "--data", data, "--output", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr
    names = facts(data)["classes"]
    expected = {
        *(f"{data}/test/{name}/t_0.png" for name in names),  # type: ignore[attr-defined]
        *(f"{data}/unlabeled/u_{n:03d}.png" for n in range(6)),
        f"{data}/unlabeled/über été (1).png",
    }
    arguments = ("predict", tmp_path / "run", data / "test", data / "unlabeled", "--probabilities")
    printed = command(*arguments, env=ascii_locale)
    assert (printed.returncode, printed.stderr) == (0, "")
    output = tmp_path / "p.csv"
    written = command(*arguments, "--output", output, env=ascii_locale)
    assert (written.returncode, written.stderr) == (0, "")
    for text in (printed.stdout, output.read_bytes().decode("utf-8")):
        rows = list(csv.DictReader(StringIO(text)))
        assert {row["path"] for row in rows} == expected
        assert {row["class"] for row in rows} <= set(names)  # type: ignore[call-overload]
        assert {f"p_{name}" for name in names} < rows[0].keys()  # type: ignore[attr-defined]
    manifest = command("pseudo-label", tmp_path / "run", data / "unlabeled", "--threshold", "0",
                       env=ascii_locale)  # fmt: skip
    assert manifest.returncode == 0
    assert f"{data}/unlabeled/über été (1).png" in manifest.stdout


# --- 19: a single image -----------------------------------------------------------------------


def test_19_a_batch_of_one(run: Path, cases: Path) -> None:
    images = cases / "c19_last_batch_one" / "unlabeled"
    together = predicted(run, images)
    assert len(together) == 9
    for batch_size in (1, 4, 8):
        rows = predicted(run, images, "--batch-size", batch_size)
        assert_twins({**together, **{f"_{name}": row for name, row in rows.items()}},
                     [[name, f"_{name}"] for name in rows])  # fmt: skip
    assert len(predicted(run, images / "u_000.png")) == 1


# --- 35: checkpoint and data do not match -------------------------------------------------------

BOTH = ("a, b, c, d", "1, 10, 2, 20")


def test_35_resuming_with_other_data(run: Path, cases: Path, tmp_path: Path) -> None:
    other = cases / "c11_numeric_names"
    stopped = shutil.copytree(run, tmp_path / "run")
    summary = json.loads((stopped / "summary.json").read_text("utf-8"))
    for copy in (run, stopped):  # a finished run, and one that was stopped
        message = refusal("resume", copy, "--data", other)
        assert all(names in message for names in BOTH), message
        (stopped / "summary.json").write_text(json.dumps({**summary, "status": "interrupted"}))
    config = (stopped / "config.yaml").read_text("utf-8")
    (stopped / "config.yaml").write_text(config.replace(str(cases / "c00_base"), str(other)))
    message = refusal("resume", stopped)
    assert all(names in message for names in BOTH), message
    moved = shutil.copytree(cases / "c00_base", tmp_path / "moved")
    text = call("resume", stopped, "--data", moved)
    assert text.returncode == 0, text.stderr
    assert json.loads((stopped / "summary.json").read_text("utf-8"))["status"] == "completed"


def test_35_a_named_set_has_no_folder(tmp_path: Path, cases: Path) -> None:
    arguments = ("--dataset", "digits", "--steps", "1", "--quiet", "--output", tmp_path / "run")
    assert call("run", "--algo", "supervised", *arguments).returncode == 0
    assert "digits" in refusal("resume", tmp_path / "run", "--data", cases / "c00_base")


def test_35_evaluating_on_other_classes(run: Path, cases: Path, tmp_path: Path) -> None:
    message = refusal("evaluate", run, "--data", cases / "c11_numeric_names")
    assert all(names in message for names in BOTH), message
    fewer = shutil.copytree(cases / "c00_base", tmp_path / "fewer")
    for part in ("labeled", "test"):
        shutil.rmtree(fewer / part / "d")
    message = refusal("evaluate", run, "--data", fewer)
    assert "a, b, c, d;" in message
    assert f"{fewer} has a, b, c;" in message


def test_35_weights_of_another_backbone(cases: Path, tmp_path: Path) -> None:
    small = call(*RUN, "--backbone", "resnet18", "--steps", "1", "--data", cases / "c00_base",
                 "--output", tmp_path / "run")  # fmt: skip
    assert small.returncode == 0, small.stderr
    for weights in ("checkpoints/last.pt", "model/model.safetensors"):
        message = refusal(*RUN, "--backbone", "resnet50", "--data", cases / "c00_base",
                          "--weights", tmp_path / "run" / weights)  # fmt: skip
        assert "'resnet18'" in message
        assert "'resnet50'" in message


def test_35_keys_are_those_of_the_bare_model(run: Path) -> None:
    state = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    for weights in (state["model"], state["ema"]["module"]):
        assert not any(key.startswith(("module.", "_orig_mod.")) for key in weights)


# --- 46: fixed input size -----------------------------------------------------------------------


def test_46_predict_uses_the_trained_size(cases: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained = call(*RUN, "--backbone", "test_vit", "--data", cases / "c00_base", "--steps", "1",
                   "--output", folder)  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    rows = predicted(folder, cases / "c00_base" / "test", cases / "c06_ext_sizes" / "unlabeled")
    assert len(rows) >= 16
    with np.load(folder / "predictions.npz") as arrays:
        recorded = arrays["test_probabilities"]
    values = predicted(folder, *(cases / "c00_base" / "test" / f"{name}/t_0.png" for name in "a"))
    np.testing.assert_allclose(probabilities(values["t_0.png"]), recorded[0], atol=1e-5)
