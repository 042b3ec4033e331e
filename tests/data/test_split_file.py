import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from case_folders import case_folders  # noqa: F401
from split_tables import table_of

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.data.splits.split_file import load_split, save_split, split_hash
from ssl_toolkit.errors import DataError


def test_a_split_file_restores_the_split_in_another_location(cases, tmp_path):
    table = read_data(cases / "c16_labeled_in_unlabeled")
    split = draw_split(table, seed=5, val_fraction=0.25)
    save_split(tmp_path / "split.json", table, split)
    shutil.copytree(cases / "c16_labeled_in_unlabeled", tmp_path / "moved")
    moved = read_data(tmp_path / "moved")
    again = load_split(tmp_path / "split.json", moved).split
    for part in ("labeled", "unlabeled", "validation", "test"):
        assert getattr(again, part).tolist() == getattr(split, part).tolist()
        assert getattr(again, part).dtype == np.int64
    assert split_hash(moved, again) == split_hash(table, split)
    text = (tmp_path / "split.json").read_text("utf-8")
    assert json.loads(text)["hash"] == split_hash(table, split)
    assert str(cases) not in text
    other = draw_split(table, seed=6, val_fraction=0.25)
    assert split_hash(table, other) != split_hash(table, split)


def test_a_split_file_with_labeled_images_in_the_pool(tmp_path):
    table = table_of([6, 6])
    split = draw_split(table, seed=0, labels_per_class=2, labeled_in_pool=True)
    save_split(tmp_path / "s.json", table, split)
    assert len(load_split(tmp_path / "s.json", table).split.unlabeled) == 12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["labeled"].append("pool/99"), "doesn't match its hash"),
        (lambda s: s["test"].append(s["test"][0]), "doesn't match its hash"),
        (lambda s: s["test"].append(s["labeled"][0]), "doesn't match its hash"),
        (lambda s: s["test"].append(s["unlabeled"][0]), "doesn't match its hash"),
        (lambda s: s["validation"].append(s["labeled"][0]), "doesn't match its hash"),
        (lambda s: s["validation"].append(s["test"][0]), "doesn't match its hash"),
        (lambda s: s["labeled"].append("unlabeled/20"), "doesn't match its hash"),
        (lambda s: s["labeled"].pop(), "doesn't match its hash"),
        (lambda s: s["classes"].reverse(), "doesn't match its hash"),
        (lambda s: s.update(format=9), "unknown format 9"),
        (lambda s: s.pop("format"), "has no format number"),
        (lambda s: s.pop("test"), "damaged: test: Field required"),
        (lambda s: s.update(test="x"), "damaged: test: "),
    ],
)
def test_errors_in_a_split_file(tmp_path, change, words):
    table = table_of([10, 10], "pool", unlabeled=3)
    split = draw_split(table, seed=0, labels_per_class=2, val_fraction=0.1, test_fraction=0.2)
    path = tmp_path / "split.json"
    save_split(path, table, split)
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(DataError, match=words) as caught:
        load_split(path, table)
    assert str(path) in str(caught.value)


def test_files_that_are_not_splits(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(DataError, match=r"a\.json: damaged or not readable"):
        load_split(tmp_path / "a.json", table_of([2, 2]))
    with pytest.raises(DataError, match=r"b\.json: split file not found"):
        load_split(tmp_path / "b.json", table_of([2, 2]))


def test_missing_images_are_named(tmp_path):
    table = table_of([4, 4])
    save_split(tmp_path / "s.json", table, draw_split(table, seed=0))
    with pytest.raises(DataError, match="labeled images that the data doesn't have: pool/7"):
        load_split(tmp_path / "s.json", table_of([4, 3]))


def test_another_data_set_of_classes(tmp_path):
    table = table_of([4, 4])
    save_split(tmp_path / "s.json", table, draw_split(table, seed=0))
    with pytest.raises(DataError, match="made for the classes a, b; the data has b, a"):
        load_split(tmp_path / "s.json", replace(table, classes=("b", "a")))


def test_labels_that_the_data_lost(tmp_path):
    table = table_of([4, 4])
    save_split(tmp_path / "s.json", table, draw_split(table, seed=0))
    unlabeled = replace(table, labels=np.full(8, -1))
    with pytest.raises(DataError, match="labeled images without a label: pool/"):
        load_split(tmp_path / "s.json", unlabeled)
