"""Manifests with several classes per image, and splits stratified by their sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from multilabel_data import make_manifest

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.splits.multilabel import draw_multilabel_split, iterative_stratification
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable

NAMES = ("a.png", "b.png", "c.png", "d.png", "e.png")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a manifest beside five files."""
    for name in NAMES:
        (tmp_path / name).touch()

    def write(text: str, name: str = "m.csv") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def sets_of(table: ImageTable) -> dict[str, list[str] | None]:
    """Return the classes of each image by path, None without a label."""
    targets = table.targets(np.arange(len(table.keys)))
    return {
        key: None
        if np.isnan(row).any()
        else [name for name, has in zip(table.classes, row, strict=True) if has]
        for key, row in zip(table.keys, targets, strict=True)
    }


EXPECTED = {
    "a.png": ["cat", "dog"],
    "b.png": ["dog"],
    "c.png": [],
    "d.png": None,
    "e.png": ["cat", "dog"],
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", "path,label\na.png,cat|dog\nb.png, dog\nc.png,|\nd.png,\ne.png,dog| cat\n"),
        ("m.tsv", "path\tlabel\na.png\tcat|dog\nb.png\tdog\nc.png\t|\nd.png\t\ne.png\tdog|cat\n"),
        ("m.txt", "a.png cat|dog\nb.png dog\nc.png |\nd.png\ne.png dog|cat\n"),
        (
            "m.jsonl",
            "".join(
                json.dumps({"path": path, "label": label}) + "\n"
                for path, label in (
                    ("a.png", ["cat", "dog"]),
                    ("b.png", "dog"),
                    ("c.png", []),
                    ("d.png", None),
                    ("e.png", ["dog", "cat"]),
                )
            ),
        ),
    ],
)
def test_every_kind_of_manifest_reads_alike(
    write: Callable[..., Path], name: str, text: str
) -> None:
    table = read_data(write(text, name), multilabel=True)
    assert table.classes == ("cat", "dog")
    assert sets_of(table) == EXPECTED
    assert table.label_sets is not None
    assert len(table.label_sets) == 3
    assert table.class_counts(np.array([0, 1, 2, 4])).tolist() == [2, 3]


def test_the_numbers_of_sets_do_not_depend_on_the_order(write: Callable[..., Path]) -> None:
    one = read_data(write("path,label\na.png,x|y\nb.png,y\nc.png,x\n"), multilabel=True)
    two = read_data(write("path,label\nc.png,x\nb.png,y\na.png,y|x\n"), multilabel=True)
    assert dict(zip(one.keys, one.labels, strict=True)) == dict(
        zip(two.keys, two.labels, strict=True)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,cat\nb.png,|\n", r"1 classes \(cat\); at least two"),
        ("path,label,split\na.png,cat|dog,\nb.png,cat|dgo,test\n", "line 3: class 'dgo' has no"),
        ("path,label,split\na.png,cat|dog,\nb.png,,test\n", "line 3: 'b.png' is in the test split"),
        ("path,label\na.png,cat|dog\na.png,cat\n", "line 3: 'a.png' is already in line 2"),
    ],
)
def test_wrong_manifests_are_refused(write: Callable[..., Path], text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_data(write(text), multilabel=True)


def test_lists_need_the_task(write: Callable[..., Path]) -> None:
    path = write('{"path": "a.png", "label": ["cat"]}\n', "m.jsonl")
    with pytest.raises(DataError, match="--task multilabel reads several classes"):
        read_data(path)
    path = write('{"path": "a.png", "label": ["cat|dog"]}\n', "m.jsonl")
    with pytest.raises(DataError, match="label and split must be"):
        read_data(path, multilabel=True)


def test_data_with_one_class_per_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gives one class per image; give a manifest"):
        read_data(tmp_path, multilabel=True)


def test_a_bar_in_a_class_of_another_task_is_a_bar(write: Callable[..., Path]) -> None:
    table = read_data(write("path,label\na.png,cat|dog\nb.png,dog\n"))
    assert table.classes == ("cat|dog", "dog")
    assert table.label_sets is None


# --- splits ---------------------------------------------------------------------------------------


def test_subsets_have_their_sizes_and_their_share_of_each_class() -> None:
    draws = np.random.default_rng(1)
    targets = draws.random((1000, 6)) < np.array([0.5, 0.3, 0.2, 0.1, 0.05, 0.02])
    sizes = (700, 200, 100)
    subset = iterative_stratification(targets, sizes)
    assert np.bincount(subset).tolist() == list(sizes)
    counts = np.stack([targets[subset == index].sum(axis=0) for index in range(3)])
    wanted = np.outer(np.array(sizes) / 1000, targets.sum(axis=0))
    assert np.abs(counts - wanted).max() <= 3
    # The rarest class is distributed first, so it is exact.
    assert np.abs(counts - wanted)[:, -1].max() <= 1


def test_stratification_follows_the_example_of_the_rarest_class() -> None:
    targets = np.array([[1, 0], [1, 0], [1, 1], [1, 1]], dtype=bool)
    subset = iterative_stratification(targets, (2, 2))
    assert sorted(subset[2:].tolist()) == [0, 1]
    assert sorted(subset[:2].tolist()) == [0, 1]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ImageTable:
    path = make_manifest(tmp_path_factory.mktemp("several"), 120, 0, hidden=10)
    return read_data(path, multilabel=True)


def test_parts_are_disjoint_and_stratified(table: ImageTable) -> None:
    split = draw_multilabel_split(
        table, seed=3, labels_per_class=5, val_fraction=0.2, test_fraction=0.25
    )
    again = draw_multilabel_split(
        table, seed=3, labels_per_class=5, val_fraction=0.2, test_fraction=0.25
    )
    other = draw_multilabel_split(
        table, seed=4, labels_per_class=5, val_fraction=0.2, test_fraction=0.25
    )
    parts = (split.labeled, split.unlabeled, split.validation, split.test)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(120))
    assert np.array_equal(split.labeled, again.labeled)
    assert not np.array_equal(split.labeled, other.labeled)
    assert table.class_counts(split.labeled).min() >= 5
    assert len(split.labeled) <= 15
    every = np.flatnonzero(table.labels >= 0)
    for rows, share in ((split.test, 0.25), (split.validation, 0.15)):
        assert len(rows) == pytest.approx(share * 110, abs=1)
        assert np.abs(table.class_counts(rows) - share * table.class_counts(every)).max() <= 3
    assert split.test.tolist() != []


def test_a_number_of_labels_is_exact(table: ImageTable) -> None:
    split = draw_multilabel_split(table, seed=0, num_labels=23)
    assert len(split.labeled) == 23


def test_the_labeled_part_depends_on_no_other_part(table: ImageTable) -> None:
    one = draw_multilabel_split(table, seed=0, labels_per_class=4)
    two = draw_multilabel_split(table, seed=0, labels_per_class=4, val_fraction=0.3)
    assert np.array_equal(one.labeled, two.labeled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels_per_class": 500}, "of the 500 labeled images requested"),
        ({"num_labels": 1}, "has no labeled image"),
        ({"num_labels": 1000}, "--num-labels must be between 1 and 110"),
        ({"num_labels": 5, "labels_per_class": 5}, "can't be used together"),
    ],
)
def test_impossible_splits_are_refused(
    table: ImageTable, arguments: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        draw_multilabel_split(table, seed=0, **arguments)  # type: ignore[arg-type]
