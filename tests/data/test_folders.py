import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from case_folders import case_folders  # noqa: F401
from folder_tables import counts, image, noted

from ssl_toolkit.data.load import read_data
from ssl_toolkit.errors import DataError

BASE = {"labeled": 16, "unlabeled": 12, "test": 12}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("c00_base", BASE),
        ("c02_side_files", BASE),
        ("c05_modes", {"labeled": 18, "unlabeled": 13, "test": 12}),
        ("c06_ext_sizes", {"labeled": 24, "unlabeled": 16, "test": 12}),
        ("c09_tool_folders", BASE),
        ("c12_unlabeled_flat", BASE),
        ("c12b_unlabeled_nested", BASE),
        ("c16_labeled_in_unlabeled", {"labeled": 16, "unlabeled": 28, "test": 12}),
    ],
)
def test_counts_of_the_cases(cases, case, expected):
    table = read_data(cases / case)
    assert table.classes == ("a", "b", "c", "d")
    assert counts(table) == expected
    assert noted(table, "4 classes (a, b, c, d)").endswith(
        ", ".join(f"{part} {count}" for part, count in expected.items())
    )


def test_rows_of_the_labeled_layout(cases):
    table = read_data(cases / "c00_base")
    assert len(set(table.keys)) == 40
    assert table.keys[:2] == ("labeled/a/img_0.png", "labeled/a/img_1.png")
    for key, label, part in zip(table.keys, table.labels, table.splits, strict=True):
        folder, *inner = key.split("/")
        assert part == {"labeled": "labeled", "unlabeled": "unlabeled", "test": "test"}[folder]
        assert label == (-1 if part == "unlabeled" else "abcd".index(inner[0]))
    assert table.read(table.labels[:3] * 0, 16).shape == (3, 16, 16, 3)
    assert noted(table, "files not used").endswith("EXPECT.json")


def test_side_files_are_named_in_one_line(cases):
    line = noted(read_data(cases / "c02_side_files"), "files not used")
    assert "labeled/a/notes.txt" in line
    assert "unlabeled/list.csv" in line
    assert "._img" not in line
    assert "Thumbs" not in line
    line = noted(read_data(cases / "c06_ext_sizes"), "files not used")
    assert "labeled/a/noext" in line


def test_nested_unlabeled_folders_are_no_labels(cases):
    table = read_data(cases / "c12b_unlabeled_nested")
    assert any(key.startswith("unlabeled/zz/deep/") for key in table.keys)
    assert set(table.labels[table.splits == "unlabeled"].tolist()) == {-1}


def test_classes_are_sorted_as_text(cases):
    assert read_data(cases / "c11_numeric_names").classes == ("1", "10", "2", "20")


def test_single_pool(cases):
    table = read_data(cases / "c17_pool")
    assert table.classes == ("a", "b", "c", "d")
    assert counts(table) == {"pool": 23}
    assert Counter(table.labels.tolist()) == {0: 10, 1: 10, 2: 1, 3: 2}


def test_names_whatever_the_locale(cases):
    expected = json.loads((cases / "c13_names" / "EXPECT.json").read_text("utf-8"))
    table = read_data(cases / "c13_names")
    assert table.classes == tuple(sorted(expected["classes"]))
    assert "unlabeled/über été (1).png" in table.keys
    code = (  # what a folder is read with, without torch, whose import takes seconds
        "import json, sys; from pathlib import Path\n"
        "from ssl_toolkit.data.images.files import decode_images\n"
        "from ssl_toolkit.data.readers.folders import walk\n"
        "top = Path(sys.argv[1])\n"
        "found = walk(top, 'c13', root=top).images\n"
        "faults = [one for one in decode_images(list(found.values()), 8) if isinstance(one, str)]\n"
        "print(json.dumps([list(found), faults, sys.getfilesystemencoding()]))"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, cases / "c13_names"],
        env={**os.environ, **plain},
        capture_output=True,
        check=True,
    )
    keys, faults, encoding = json.loads(done.stdout)
    assert encoding == "ascii"
    assert faults == []
    assert sorted(keys) == sorted(f"c13/{key}" for key in table.keys)


@pytest.mark.parametrize("layout", ["British", "TITLE"])
def test_spellings(cases, tmp_path, layout):
    names = {
        "British": ("labelled", "unlabelled", "test"),
        "TITLE": ("Labeled", "UNLABELED", "Test"),
    }[layout]
    for old, new in zip(("labeled", "unlabeled", "test"), names, strict=True):
        shutil.copytree(cases / "c00_base" / old, tmp_path / new)
    assert counts(read_data(tmp_path)) == BASE


def make(root: Path, *folders: str) -> Path:
    for folder in folders:
        for kind in ("cat", "dog"):
            image(root / folder / kind / "1.png")
    return root


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("train", "test"), {"pool": 2, "test": 2}),
        (("train", "val"), {"pool": 2, "test": 2}),
        (("train", "val", "test"), {"pool": 2, "validation": 2, "test": 2}),
        (("train", "validation", "test"), {"pool": 2, "validation": 2, "test": 2}),
        (("train", "validation", "val"), {"pool": 2, "validation": 2, "test": 2}),
        (("train",), {"pool": 2}),
        (("labeled", "validation"), {"labeled": 2, "validation": 2}),
        (("labeled", "val", "test"), {"labeled": 2, "validation": 2, "test": 2}),
    ],
)
def test_layouts_with_one_folder_per_split(tmp_path, folders, expected):
    table = read_data(make(tmp_path, *folders))
    assert counts(table) == expected
    assert table.classes == ("cat", "dog")
    assert (table.labels >= 0).all()


def test_other_folders_are_ignored_and_named(tmp_path):
    table = read_data(make(tmp_path, "labeled", "raw", "old"))
    assert noted(table, "ignored folders") == "ignored folders: old, raw"
    make(tmp_path / "pool", ".")
    (tmp_path / "pool" / "docs").mkdir()
    (tmp_path / "pool" / "docs" / "a.txt").write_text("x")
    table = read_data(tmp_path / "pool")
    assert table.classes == ("cat", "dog")
    assert noted(table, "ignored folders") == "ignored folders: docs"


def test_unlabeled_beside_train_is_reported(tmp_path):
    make(tmp_path, "train", "unlabeled")
    assert "rename train/ to labeled/" in noted(read_data(tmp_path), "is not used beside train/")


def test_a_missing_or_empty_unlabeled_folder_is_reported(tmp_path):
    make(tmp_path, "labeled")
    line = noted(read_data(tmp_path), "no unlabeled images")
    assert line.endswith(f"there is no folder {tmp_path}/unlabeled")
    (tmp_path / "unlabelled").mkdir()
    line = noted(read_data(tmp_path), "no unlabeled images")
    assert line.endswith(f"the folder {tmp_path}/unlabelled holds none")


def test_layouts_that_cannot_be_read(tmp_path):
    flat = tmp_path / "flat"
    image(flat / "1.png")
    empty = tmp_path / "empty"
    empty.mkdir()
    one = tmp_path / "one"
    image(one / "only" / "1.png")
    for folder in (flat, empty, one, make(tmp_path / "half", "test", "unlabeled")):
        with pytest.raises(DataError, match="labeled/<class>/") as caught:
            read_data(folder)
        assert str(folder) in str(caught.value)
    with pytest.raises(DataError, match=r"nowhere doesn't exist; give a folder that holds labele"):
        read_data(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a file of no known kind"):
        read_data(flat / "1.png")
    with pytest.raises(DataError, match="both labeled/ and labelled/"):
        read_data(make(tmp_path / "both", "labeled", "labelled"))
    with pytest.raises(DataError, match="both validation/ and val/"):
        read_data(make(tmp_path / "three", "train", "validation", "val", "test"))


def test_classes_that_do_not_agree(tmp_path):
    make(tmp_path, "labeled", "test", "validation")
    image(tmp_path / "test" / "cow" / "1.png")
    image(tmp_path / "validation" / "yak" / "1.png")
    with pytest.raises(DataError) as caught:
        read_data(tmp_path)
    assert len(caught.value.messages) == 2
    assert "test/cow" in str(caught.value)
    assert "validation/yak" in str(caught.value)


def test_a_class_without_images(tmp_path):
    make(tmp_path, "train")
    (tmp_path / "train" / "cow").mkdir()
    with pytest.raises(DataError, match="train/cow has no image"):
        read_data(tmp_path)


def test_unreadable_images_of_all_splits_are_named_together(cases, tmp_path):
    shutil.copytree(cases / "c00_base", tmp_path / "data")
    bad = [
        tmp_path / "data" / name
        for name in ("labeled/a/img_0.png", "test/b/t_1.png", "unlabeled/u_003.png")
    ]
    for path in bad:
        path.write_bytes(path.read_bytes()[:60])
    for workers in (0, 2):
        with pytest.raises(DataError) as caught:
            read_data(tmp_path / "data", size=8, workers=workers)
        assert len(caught.value.messages) == 4
        assert all(str(path) in str(caught.value) for path in bad)
    table = read_data(tmp_path / "data", size=8, on_bad_image="skip")
    assert counts(table) == {"labeled": 15, "unlabeled": 11, "test": 11}
    assert sum(note.startswith("skipped ") for note in table.notes) == 3
    assert not any(key.endswith("u_003.png") for key in table.keys)


def test_the_decompression_bomb_is_skipped(cases):
    table = read_data(cases / "c07_bomb", size=8, on_bad_image="skip")
    assert counts(table) == BASE
    assert "60000 x 60000" in noted(table, "skipped unlabeled/huge.png")


def test_digest_finds_the_same_bytes(cases):
    table = read_data(cases / "c16_labeled_in_unlabeled")
    rows = {key: row for row, key in enumerate(table.keys)}
    digest = table.digest
    assert digest(rows["labeled/a/img_0.png"]) == digest(rows["unlabeled/L_a_img_0.png"])
    assert digest(rows["labeled/a/img_0.png"]) != digest(rows["unlabeled/L_a_img_1.png"])


def test_nothing_is_written_into_the_data(cases, tmp_path):
    shutil.copytree(cases / "c00_base", tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    table = read_data(tmp_path / "data")
    table.read(table.labels[:4] * 0, 8)
    assert sorted(tmp_path.rglob("*")) == before
