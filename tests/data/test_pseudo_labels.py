"""`--pseudo-labels`: images of the pool become labeled ones, and nothing else of a split moves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal

from ssl_toolkit import DataError, train
from ssl_toolkit.config.loading import Layer, plain_tree, validate
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.runs.check import check_run

RUN = {"algo": "supervised", "dataset": "digits", "steps": 4, "eval_every": 4}


def prepared(**keys: Any) -> Experiment:
    return prepare(resolve_config(validate([Layer("test", plain_tree(RUN | keys))]))[0])


@pytest.fixture(scope="module")
def plain() -> Experiment:
    return prepared()


def written(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("path,label\n" + "".join(f"{key},{label}\n" for key, label in rows))
    return path


def wrong_labels(plain: Experiment, count: int = 5) -> list[tuple[str, str]]:
    """Images of the pool with a label that is not theirs."""
    table = plain.table
    return [
        (table.keys[row], table.classes[(table.labels[row] + 1) % 10])
        for row in plain.split.unlabeled[:count].tolist()
    ]


def test_images_of_the_pool_become_labeled(plain: Experiment, tmp_path: Path) -> None:
    rows = wrong_labels(plain)
    empty = [(plain.table.keys[plain.split.unlabeled[9]], "")]
    found = prepared(pseudo_labels=written(tmp_path / "l.csv", rows + empty))
    before, after = plain.split, found.split
    new = before.unlabeled[:5]
    assert after.labeled.tolist() == [*before.labeled.tolist(), *sorted(new.tolist())]
    assert after.unlabeled.tolist() == before.unlabeled[5:].tolist()
    assert np.array_equal(after.test, before.test)
    assert np.array_equal(after.validation, before.validation)
    assert (found.table.labels[new] == (plain.table.labels[new] + 1) % 10).all()
    assert np.array_equal(found.table.labels[after.test], plain.table.labels[before.test])
    assert "5 of the labeled images have pseudo labels" in found.notes
    kept = prepared(pseudo_labels=tmp_path / "l.csv", labeled_in_pool=True)
    assert np.isin(new, kept.split.unlabeled).all()
    assert np.isin(new, kept.split.labeled).all()


def test_a_run_contains_its_pseudo_labels(plain: Experiment, tmp_path: Path) -> None:
    path = written(tmp_path / "l.csv", wrong_labels(plain))
    folder = tmp_path / "run"
    first = train(RUN | {"pseudo_labels": path, "output": folder})
    path.unlink()
    moved = tmp_path / "moved"
    shutil.move(folder, moved)
    assert check_run(moved).faults == []
    scores = json.loads(call("evaluate", moved, "--json").stdout)
    assert scores["test"]["accuracy"] == first.summary.test.accuracy
    (moved / "pseudo_labels.csv").unlink()
    assert "pseudo_labels.csv: missing" in check_run(moved).faults


def test_an_earlier_split_can_be_extended(plain: Experiment, tmp_path: Path) -> None:
    train(RUN | {"output": tmp_path / "first"})
    path = written(tmp_path / "l.csv", wrong_labels(plain))
    split = tmp_path / "first" / "split.json"
    found = prepared(pseudo_labels=path, split=split)
    assert found.split_hash == prepared(pseudo_labels=path).split_hash != plain.split_hash


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("digits/none", "1")], "l.csv, line 2: the data has no image 'digits/none'"),
        ([("0", "1"), ("0", "1")], "line 3: .* is already in line 2"),
        ([("0", "eleven")], "has the label 'eleven', no class of the data"),
        ([("test", "1")], "names validation or test images"),
        ([("labeled", "wrong")], "gives labeled images another label: digits/.*; leave their rows"),
    ],
)
def test_wrong_files(
    plain: Experiment, tmp_path: Path, rows: list[tuple[str, str]], message: str
) -> None:
    table, split = plain.table, plain.split
    keys = {"0": table.keys[split.unlabeled[0]], "test": table.keys[split.test[0]]}
    keys["labeled"] = table.keys[split.labeled[0]]
    wrong = table.classes[(table.labels[split.labeled[0]] + 1) % 10]
    rows = [(key, wrong if label == "wrong" else label) for key, label in rows]
    path = written(tmp_path / "l.csv", [(keys.get(key, key), label) for key, label in rows])
    with pytest.raises(DataError, match=message):
        prepared(pseudo_labels=path)


def test_faults_end_a_run_in_one_line(tmp_path: Path) -> None:
    for name in ("none.csv", "list.txt"):
        line = refusal("run", "--pseudo-labels", tmp_path / name, "--output", tmp_path / "out")
        assert line.count("\n") == 1
        assert name in line
    assert not (tmp_path / "out").exists()
