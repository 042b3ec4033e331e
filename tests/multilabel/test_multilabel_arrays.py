"""Arrays with several classes per image: labels (N, C) of zeros and ones in an ``.npz``."""

from __future__ import annotations

import json
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal

from ssl_toolkit.data.load import read_data
from ssl_toolkit.errors import DataError

CLASSES = np.array(["red", "green", "blue"])
draws = np.random.default_rng(0)
LABELS = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [-1, -1, -1], [1, 1, 1], [0, 1, 1]])
IMAGES = draws.integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **({"images": IMAGES, "labels": LABELS, "classes": CLASSES} | arrays))
    return path


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_zeros_and_ones_become_sets(tmp_path: Path, kind: type) -> None:
    table = read_data(write(tmp_path / "a.npz", labels=LABELS.astype(kind)), multilabel=True)
    assert table.classes == ("red", "green", "blue")
    rows = np.array([0, 1, 2, 4, 5])
    assert (table.targets(rows) == LABELS[rows]).all()
    assert np.isnan(table.targets(np.array([3]))).all()
    assert table.splits.tolist() == ["pool"] * 3 + ["unlabeled"] + ["pool"] * 2
    assert table.label_sets is not None
    assert len(table.label_sets) == 4


def test_the_form_of_medmnist_without_names(tmp_path: Path) -> None:
    known = np.maximum(LABELS, 0)
    np.savez(
        tmp_path / "chest.npz",
        train_images=IMAGES, train_labels=known, test_images=IMAGES, test_labels=known[::-1],
    )  # fmt: skip
    table = read_data(tmp_path / "chest.npz", multilabel=True)
    assert table.classes == ("0", "1", "2")
    assert (table.targets(np.arange(12)) == np.concatenate([known, known[::-1]])).all()
    with pytest.raises(DataError, match=r"labels are \(N,\), one class.*--task multilabel reads"):
        read_data(tmp_path / "chest.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": LABELS[:, 0]}, r"labels: --task multilabel needs \(N, C\)"),
        ({"labels": LABELS[:, :2]}, r"labels: --task multilabel needs \(N, C\) .*got \(6, 2\)"),
        ({"labels": LABELS.astype(str)}, "labels: --task multilabel needs"),
        ({"labels": LABELS * 2}, "labels: labels are 0 or 1, and all of a row -1"),
        ({"labels": np.where(LABELS == 1, -1, 0)}, "labels are 0 or 1, and all of a row -1"),
        ({"labels": LABELS[:4]}, r"6 images need \(6,\) labels"),
        ({"classes": np.array(["a|b", "c", "d"])}, r"classes: 'a\|b' is empty, repeated or has \|"),
        ({"classes": np.array(["a", "a", "d"])}, "classes: 'a' is empty, repeated"),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, arrays: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_data(write(tmp_path / "a.npz", **arrays), multilabel=True)
    assert "\n" not in str(caught.value)


def test_a_run_on_arrays(tmp_path: Path) -> None:
    labels = draws.integers(0, 2, (60, 3))
    path = write(tmp_path / "a.npz", images=IMAGES[draws.integers(0, 6, 60)], labels=labels)
    arguments = ("run", "--data", path, "--algo", "pseudo_label", "--backbone", "wrn_10_1")
    arguments += ("--labels-per-class", 6, "--test-fraction", 0.3, "--steps", 2, "--device", "cpu")
    done = call(*arguments, "--task", "multilabel", "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert call("check-run", tmp_path / "run").returncode == 0
    leaks = json.loads((tmp_path / "run" / "leaks.json").read_text())
    named = {image["class"] for group in leaks["groups"] for image in group}
    assert named <= {"|".join(compress(CLASSES, row)) or "|" for row in labels.tolist()}
    assert any("|" in name for name in named)
    assert "--task multilabel reads" in refusal(*arguments, "--output", tmp_path / "other")
