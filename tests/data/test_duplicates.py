import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from in_process import call, refusal

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.data.splits.duplicates import (
    LeaksFile,
    drop_leaks,
    find_leaks,
    same_images,
    split_parts,
)
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable

PARTS = {"l": "labeled", "u": "unlabeled", "v": "validation", "t": "test", "-": ""}


def table_of(text: str) -> ImageTable:
    """A table of images such as ``l0x``: labeled, class 0 (or ``-``), of bytes x."""
    rows = text.split()
    return ImageTable(
        classes=("cat", "dog"),
        keys=tuple(f"{number}.png" for number in range(len(rows))),
        labels=np.array([-1 if row[1] == "-" else int(row[1]) for row in rows]),
        splits=np.array([PARTS[row[0]] for row in rows]),
        read=lambda rows, size: np.zeros((len(rows), size, size, 3), np.uint8),
        digest=lambda row: rows[row][2:],
    )


def split_of(table: ImageTable) -> Split:
    return Split(
        *(
            np.flatnonzero(table.splits == part)
            for part in ("labeled", "unlabeled", "validation", "test")
        )
    )


def leaks_in(text: str) -> list[list[int]]:
    table = table_of(text)
    return [group.rows.tolist() for group in find_leaks(table, table.splits).groups]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("l0x t0x", [[0, 1]]),
        ("u-x t0x u-y", [[0, 1]]),
        ("v0x t0x", [[0, 1]]),
        ("l0x v0x", [[0, 1]]),
        ("u-x v0x", [[0, 1]]),
        ("l0x l1x", [[0, 1]]),
        ("u0x u1x", [[0, 1]]),
        ("t0x t1x", [[0, 1]]),
        ("u-y u-x l0x l1y t0x t1y", [[0, 3, 5], [1, 2, 4]]),
        ("l0x u-x", []),
        ("l0x l0x", []),
        ("t0x t0x", []),
        ("-0x t0x", []),
        ("-0x l1x", []),
        ("l0x u-y v0z t0w", []),
    ],
)
def test_leaks_are_duplicates_across_splits(text, groups):
    assert leaks_in(text) == groups


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        ("l0x t0x l0y l1z", [0]),
        ("u-x t0x l0y l1z", [0]),
        ("v0x t0x l0y l1z", [0]),
        ("l0x v0x l0y l1z", [0]),
        ("u-x l0x v0x t0x l0y l1z", [0, 1, 2]),
        ("u-x l0x v0x l0y l1z", [0, 1]),
        ("l0x l1x u-x l0y l1z", [0, 1]),
        ("l0x u1x l0y l1z", [0]),
        ("u0x u1x l0y l1z", []),
        ("t0x t1x l0y l1z", []),
    ],
)
def test_dropped_images(text, dropped):
    table = table_of(text)
    split = split_of(table)
    leaks = find_leaks(table, split_parts(table, split))
    assert leaks.rows_to_drop.tolist() == dropped
    kept, message = drop_leaks(table, split, leaks)
    assert message.dropped == bool(dropped)
    left = np.concatenate([kept.labeled, kept.unlabeled, kept.validation, kept.test])
    assert sorted(left.tolist()) == [row for row in range(len(table.keys)) if row not in dropped]
    assert kept.test.tolist() == split.test.tolist()
    assert [note for note in kept.notes if f"removed {len(dropped)} images" in note] or not dropped
    assert not find_leaks(table, split_parts(table, kept)) or not dropped


def test_a_labeled_image_of_the_pool_is_removed_from_both():
    table = table_of("l0x t0x l0y l1z")
    split = replace(split_of(table), unlabeled=np.array([0, 2]))
    kept, _ = drop_leaks(table, split, find_leaks(table, split_parts(table, split)))
    assert kept.labeled.tolist() == [2, 3]
    assert kept.unlabeled.tolist() == [2]


def test_a_class_that_would_be_empty_is_named():
    table = table_of("l0x l1y t0x")
    split = split_of(table)
    with pytest.raises(DataError, match="no labeled image of cat"):
        drop_leaks(table, split, find_leaks(table, split_parts(table, split)))


def test_the_warning_counts():
    table = table_of("l0x t0x u-y u-y v1y t1y v0z l0z l0a l1a l0b")
    warning = find_leaks(table, table.splits).warning()
    assert "1 labeled and 2 unlabeled and 1 validation images are test images too" in warning
    assert "1 images have conflicting labels (2 files)" in warning
    assert "--drop-leaks" in warning
    assert "\n" not in warning


def test_the_list_names_the_offending_words():
    table = table_of("u-x l1x t1x")
    content = find_leaks(table, table.splits).file(table).tree()
    assert content["dropped"] is False
    (group,) = content["groups"]
    assert group[0] == {"path": "0.png", "part": "unlabeled", "class": None, "offends": True}
    assert [image["offends"] for image in group] == [True, True, False]
    assert group[2]["class"] == "dog"


def test_without_digests_changes_are_unknown():
    table = replace(table_of("l0x t0x"), digest=None)
    assert same_images(table, np.arange(2)) == []
    assert not find_leaks(table, table.splits)


def test_digests_with_equal_prefixes_are_not_equal(cases):
    table = read_data(cases / "c00_base", size=8)
    caches = files_of(table)._caches
    digests = caches[8].digests.copy()
    digests[:3, :8] = 7
    digests[2:4] = 5
    caches[8] = replace(caches[8], digests=digests)
    assert [group.tolist() for group in same_images(table, np.arange(40))] == [[2, 3]]
    assert same_images(table, np.array([0, 1, 2])) == []


# --- on the command line ------------------------------------------------------------------------

RUN = (
    "run", "--algo", "fixmatch", "--backbone", "test_resnet", "--image-size", "32", "--steps", "2",
    "--eval-every", "2", "--batch-size", "4", "--device", "cpu",
)  # fmt: skip


@pytest.fixture
def leaky(cases, tmp_path):
    data = shutil.copytree(cases / "c00_base", tmp_path / "data")
    shutil.copy(data / "test/a/t_0.png", data / "labeled/a/again.png")
    shutil.copy(data / "test/b/t_0.png", data / "unlabeled/again.png")
    shutil.copy(data / "labeled/c/img_0.png", data / "labeled/d/again.png")
    return data


def test_a_run_warns_lists_and_drops(leaky, tmp_path):
    first = call(*RUN, "--data", leaky, "--output", tmp_path / "run")
    assert first.returncode == 0, first.stderr
    (warning,) = [line for line in first.stdout.splitlines() if line.startswith("warning: byte")]
    assert "1 labeled and 1 unlabeled images are test images too" in warning
    assert "1 images have conflicting labels" in warning
    assert "leaks.json" in warning
    content = json.loads((tmp_path / "run/leaks.json").read_text("utf-8"))
    assert content["format"] == LeaksFile.FORMAT
    assert LeaksFile.read(tmp_path / "run/leaks.json").tree()["groups"] == content["groups"]
    paths = [{image["path"] for image in group} for group in content["groups"]]
    assert {"labeled/a/again.png", "test/a/t_0.png"} in paths
    assert {"unlabeled/again.png", "test/b/t_0.png"} in paths
    assert {"labeled/c/img_0.png", "labeled/d/again.png"} in paths
    counts = json.loads((tmp_path / "run/summary.json").read_text())["counts"]
    assert counts == {"labeled": 18, "unlabeled": 13, "validation": 0, "test": 12}

    again = call(*RUN, "--data", leaky, "--drop-leaks", "--output", tmp_path / "dropped")
    assert again.returncode == 0, again.stderr
    assert "--drop-leaks removed 4 images: 3 labeled, 1 unlabeled" in again.stdout
    assert json.loads((tmp_path / "dropped/leaks.json").read_text("utf-8"))["dropped"] is True
    summary = json.loads((tmp_path / "dropped/summary.json").read_text())
    assert summary["counts"] == {"labeled": 15, "unlabeled": 12, "validation": 0, "test": 12}
    scored = call("evaluate", tmp_path / "dropped")
    assert scored.returncode == 0, scored.stderr


def test_a_clean_run_has_no_list(cases, tmp_path):
    done = call(*RUN, "--data", cases / "c16_labeled_in_unlabeled", "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "byte-identical" not in done.stdout
    assert not (tmp_path / "run/leaks.json").exists()


def test_dropping_a_whole_class_is_refused(cases, tmp_path):
    data = shutil.copytree(cases / "c00_base", tmp_path / "data")
    for path in (data / "labeled/a").iterdir():
        shutil.copy(path, data / "test/a" / f"again_{path.name}")
    message = refusal(*RUN, "--data", data, "--drop-leaks", "--output", tmp_path / "run")
    assert "no labeled image of a" in message
    assert not (tmp_path / "run").exists()
