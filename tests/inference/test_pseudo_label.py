"""``ssl-toolkit pseudo-label``: what comes out goes in again."""

from __future__ import annotations

import csv
import json
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from in_process import call, refusal

from ssl_toolkit import ConfigError, Model, load_model, pseudo_label
from ssl_toolkit.data.load import read_data
from ssl_toolkit.inference.model import Scored
from ssl_toolkit.inference.pseudo_label import (
    label_pool,
    uncertain_image,
)

TRAIN = ("run", "--algo", "supervised", "--backbone", "wrn_10_1", "--image-size", "16", "--steps",
         "30", "--batch-size", "8", "--device", "cpu", "--quiet")  # fmt: skip


@pytest.fixture(scope="module")
def run(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pseudo") / "run"
    result = call(*TRAIN, "--data", cases / "c11_numeric_names", "--output", folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return load_model(run, "cpu")


@pytest.fixture
def pool(cases: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cases / "c11_numeric_names" / "unlabeled", tmp_path / "pool"))


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def middle(model: Model, pool: Path) -> float:
    """A threshold that half of the pool is above."""
    return float(np.median(model.predict(sorted(pool.iterdir())).max(axis=1)))


def test_rows_below_the_threshold_carry_no_label(run: Path, model: Model, pool: Path) -> None:
    threshold = middle(model, pool)
    result = call("pseudo-label", run, pool, "--threshold", threshold)
    assert result.returncode == 0, result.stderr
    rows = table(result.stdout)
    assert [*rows[0]] == ["path", "label", "split", "confidence"]
    expected = model.predict(sorted(pool.iterdir()))
    assert len(rows) == len(expected) == 12
    sure = expected.max(axis=1) >= threshold
    assert 0 < sure.sum() < 12
    for row, probs, above in zip(rows, expected, sure, strict=True):
        assert float(row["confidence"]) == pytest.approx(probs.max(), abs=1e-6)
        label = model.classes[probs.argmax()]
        assert (row["label"], row["split"]) == ((label, "labeled") if above else ("", "unlabeled"))
    assert f"{sure.sum()} of 12 images labeled" in result.stderr


@pytest.mark.parametrize("name", ["m.csv", "m.tsv", "m.jsonl"])
def test_training_accepts_the_manifest(run: Path, model: Model, pool: Path, name: str) -> None:
    manifest = pool.parent / name
    result = call("pseudo-label", run, pool, "--threshold", middle(model, pool), "--output",
                  manifest)  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "")
    assert "--root" not in result.stderr
    actual = read_data(manifest)
    assert actual.keys == tuple(f"pool/u_{number:03d}.png" for number in range(12))
    predicted = model.predict(sorted(pool.iterdir())).argmax(axis=1)
    for row in range(12):
        if actual.splits[row] == "labeled":
            assert actual.classes[actual.labels[row]] == model.classes[predicted[row]]
        else:
            assert (actual.splits[row], actual.labels[row]) == ("unlabeled", -1)
    if name == "m.csv":
        again = call(*TRAIN, "--algo", "fixmatch", "--steps", "1", "--data", manifest, "--output",
                     pool.parent / "again")  # fmt: skip
        assert again.returncode == 0, again.stderr
        counts = json.loads((pool.parent / "again" / "summary.json").read_text())["counts"]
        assert counts["labeled"] + counts["unlabeled"] == 12
        assert counts["labeled"] == (actual.splits == "labeled").sum()


def test_a_pool_elsewhere_needs_the_root(run: Path, pool: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "other" / "m.csv"
    result = call("pseudo-label", run, pool, "--threshold", "0", "--output", manifest)
    assert f"--root {pool}" in result.stderr
    assert table(manifest.read_text("utf-8"))[0]["path"] == f"{pool}/u_000.png"
    assert len(read_data(manifest, root=pool).keys) == 12


def test_the_most_uncertain_come_first(run: Path, model: Model, pool: Path) -> None:
    result = call("pseudo-label", run, pool, "--uncertain", "5")
    rows = table(result.stdout)
    probabilities = model.predict(sorted(pool.iterdir()))
    ranked = np.sort(probabilities, axis=1)
    margins = ranked[:, -1] - ranked[:, -2]
    expected = np.argsort(margins, kind="stable")[:5]
    assert [row["path"] for row in rows] == [f"{pool}/u_{place:03d}.png" for place in expected]
    for row, place in zip(rows, expected, strict=True):
        best, second = np.argsort(-probabilities[place])[:2]
        assert (row["class"], row["second"]) == (model.classes[best], model.classes[second])
        assert float(row["margin"]) == pytest.approx(margins[place], abs=1e-6)
    assert "images labeled" not in result.stderr  # no manifest was asked for
    both = call("pseudo-label", run, pool, "--uncertain", "99", "--output", pool.parent / "m.csv")
    assert len(table(both.stdout)) == 12
    assert (pool.parent / "m.csv").exists()


def test_equal_margins_keep_their_order(
    model: Model, pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probabilities = np.array([[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]] * 4, np.float32)
    rows = [Scored(row, 0.0) for row in probabilities]
    monkeypatch.setattr(Model, "scored", lambda *_, **__: iter(rows))
    uncertain = pseudo_label(model, pool, uncertain=9).uncertain
    names = [f"{pool}/u_{number:03d}.png" for number in (0, 2, 3, 5, 6, 8, 9, 11, 1)]
    assert [image.path for image in uncertain] == names
    assert uncertain[0].label == model.classes[0]


def test_the_threshold_is_compared_with_the_confidence_that_is_written() -> None:
    # In float32 0.9 is a little less.
    image = uncertain_image("x", np.array([0.1, 0.9], np.float32), "ab")
    labeling = label_pool([Path("x")] * 2, [image, image._replace(confidence=0.8)], 0.9, None)
    assert labeling.labels == ("b", None)
    assert [row[1:] for row in labeling.rows()] == [
        ["b", "labeled", 0.9], ["", "unlabeled", 0.8],
    ]  # fmt: skip


def test_unreadable_images_are_left_out(run: Path, pool: Path) -> None:
    (pool / "u_004.png").write_bytes(b"")
    manifest = pool.parent / "m.csv"
    result = call("pseudo-label", run, pool, "--threshold", "0", "--output", manifest)
    assert result.returncode == 1
    assert f"error: can't read image {pool}/u_004.png: empty file" in result.stderr
    assert len(read_data(manifest).keys) == 11


def test_refused_settings(run: Path, pool: Path, tmp_path: Path) -> None:
    assert ".csv or .tsv or .jsonl" in refusal("pseudo-label", run, pool, "--output", "m.json")
    assert "--threshold" in refusal("pseudo-label", run, pool, "--threshold", "95")
    (tmp_path / "empty").mkdir()
    assert "no images" in refusal("pseudo-label", run, tmp_path / "empty")
    assert "neither a run" in refusal("pseudo-label", tmp_path / "empty", pool)
    result = call("pseudo-label", run, pool, "--threshold", "1")
    highest = max(float(row["confidence"]) for row in table(result.stdout))
    assert (
        "warning: training needs two classes; lower --threshold 1: the highest confidence is "
        f"{highest:.4f}\n" in result.stderr
    )


def test_python_returns_the_rows_of_the_command(run: Path, model: Model, pool: Path) -> None:
    threshold = middle(model, pool)
    labeling = pseudo_label(run, pool, threshold=threshold, uncertain=3)
    rows = table(call("pseudo-label", run, pool, "--threshold", threshold).stdout)
    assert [[row["path"], row["label"], row["split"]] for row in rows] == [
        row[:3] for row in labeling.rows()
    ]
    assert [float(row["confidence"]) for row in rows] == list(labeling.confidences)
    rows = table(call("pseudo-label", run, pool, "--uncertain", "3").stdout)
    assert [[*row.values()] for row in rows] == [
        [str(value) for value in image] for image in labeling.uncertain
    ]


def test_python_does_not_replace_a_file_of_the_run(run: Path, pool: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.csv: this file is an input"):
        pseudo_label(run, pool, output=run / "metrics.csv")
