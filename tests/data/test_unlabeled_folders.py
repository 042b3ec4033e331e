"""Folders without labeled images, whose classes come from a labels file."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import call, refusal
from tiny_images import put, rows_of

from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.load import load_table, read_data
from ssl_toolkit.errors import DataError


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    for number in range(6):
        put(tmp_path / "photos" / f"{number}.png", 20 * number)
    return tmp_path / "photos"


def test_a_folder_of_images_without_class_folders(flat: Path) -> None:
    (flat / "notes.csv").write_text("path,label\n")  # a labels file may be beside the images
    table = read_data(flat, unlabeled=True)
    assert table.classes == ()
    assert rows_of(table) == {f"{n}.png": ("unlabeled", "") for n in range(6)}
    with pytest.raises(DataError, match=f"at least two classes.* `ssl-toolkit label next {flat}`"):
        read_data(flat)


def test_unlabeled_images_beside_test_images(tmp_path: Path) -> None:
    for name in ("unlabeled/a.png", "test/x/b.png", "test/y/c.png", "val/x/d.png"):
        put(tmp_path / name)
    table = read_data(tmp_path, unlabeled=True)
    assert table.classes == ("x", "y")
    assert rows_of(table) == {
        "unlabeled/a.png": ("unlabeled", ""),
        "test/x/b.png": ("test", "x"),
        "test/y/c.png": ("test", "y"),
        "val/x/d.png": ("validation", "x"),
    }
    with pytest.raises(DataError, match=r"neither labeled/ nor train/.* `ssl-toolkit label next"):
        read_data(tmp_path)


def test_other_layouts_are_read_as_before(tmp_path: Path) -> None:
    for name in ("labeled/x/a.png", "labeled/y/b.png", "unlabeled/c.png"):
        put(tmp_path / name)
    assert rows_of(read_data(tmp_path, unlabeled=True)) == rows_of(read_data(tmp_path))


def test_a_manifest_without_labels(flat: Path) -> None:
    manifest = flat.parent / "pool.csv"
    manifest.write_text("path\nphotos/0.png\nphotos/1.png\n")
    table = read_data(manifest, unlabeled=True)
    assert rows_of(table) == {f"photos/{n}.png": ("unlabeled", "") for n in (0, 1)}


def test_training_on_a_folder_of_images_with_a_labels_file(flat: Path) -> None:
    labels = flat.parent / "labels.csv"
    labels.write_text("path,label\n0.png,no\n1.png,007\n2.png,no\n3.png,\n")
    flags = ("--data", flat, "--labels", labels, "--steps", 1, "--device", "cpu")
    assert load_table(
        load_config((), {"data": str(flat), "labels": str(labels)}, ()).settings
    ).classes == ("007", "no")
    done = call(
        "run", *flags, "--output", flat.parent / "run", "--backbone", "test_resnet", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    assert (flat.parent / "run" / "summary.json").read_text().count('"007"')
    one = flat.parent / "one.csv"
    one.write_text("path,label\n0.png,no\n")
    message = refusal("run", *flags[:2], "--labels", one, "--steps", 1)
    assert "labels of 1 classes (no); at least two are needed" in message
