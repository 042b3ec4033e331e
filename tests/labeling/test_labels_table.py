"""The table of labels: read, merged, written whole, shared by programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ssl_toolkit.errors import ConfigError, DataError, ModelError
from ssl_toolkit.labeling.labels_table import LabelsTable


def table(folder: Path, text: str | None = None) -> LabelsTable:
    path = folder / "labels.csv"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return LabelsTable(path)


def test_a_missing_or_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    assert table(tmp_path).rows == {}
    assert table(tmp_path, "").rows == {}
    assert table(tmp_path, "path,label\n").rows == {}


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("a b,c.png", "cat"),
        ("=1.png", "@cat"),
        ("a.png", "-1"),  # a class of this name
        (" a .png ", " cat "),
        ("ä.png", "猫"),
        ("a\nb\r.png", "x\ry"),
        ("'a.png", "'null"),
    ],
)
def test_a_table_reads_back_the_same(tmp_path: Path, key: str, label: str) -> None:
    labels = table(tmp_path)
    labels.put("first.png", "dog")
    labels.put("skipped.png", "")
    labels.put(key, label)
    labels.write()
    assert [*table(tmp_path).rows.items()] == [*labels.rows.items()]
    assert labels.labels == {"first.png": "dog", key: label}


def test_a_new_label_moves_the_row_to_the_end(tmp_path: Path) -> None:
    labels = table(tmp_path, "path,label\na.png,cat\nb.png,dog\n")
    labels.put("a.png", "dog")
    assert [*labels.rows] == ["b.png", "a.png"]
    assert labels.classes() == ["dog"]


def test_the_forms_of_a_name_are_one_class(tmp_path: Path) -> None:
    labels = table(tmp_path, "path,label\na.png,e\u0301\n")
    labels.put("b.png", "\u00e9")
    assert labels.classes() == ["\u00e9"]


def test_merging_keeps_a_label_that_differs_unless_it_is_replaced(tmp_path: Path) -> None:
    labels = table(tmp_path, "path,label\na.png,cat\nb.png,\n")
    assert labels.merge({"a.png": "dog", "b.png": "cat", "c.png": ""}) == {"a.png": "cat"}
    assert labels.rows == {"a.png": "cat", "b.png": "cat", "c.png": ""}
    assert labels.merge({"a.png": "dog", "b.png": ""}, replace=True) == {"a.png": "cat"}
    assert labels.rows == {"b.png": "cat", "c.png": "", "a.png": "dog"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,cat\na.png,dog\n", "line 3: 'a.png' is already in line 2"),
        ("path,label\n,cat\n", "line 2: has no path"),
        ("path\na.png\n", "has the columns path; a labels file has path and label"),
        ("path,label,note\na.png,cat,x\n", "columns path, label, note"),
        ("path,label,split\na.png,cat,test\n", "columns path, label, split"),
        ("a.png,cat\n", "no column 'path'"),
        ("path,label\na.png\n", "line 2: 1 columns"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table(tmp_path, text)
    assert (tmp_path / "labels.csv").read_text() == text


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.csv"):
        LabelsTable(tmp_path / "labels.txt")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match="a folder has this name"):
        LabelsTable(tmp_path / "folder.csv")


def test_a_name_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NUL"):
        table(tmp_path).put("a.png", "a\0b")
    with pytest.raises(DataError, match="half a character"):
        table(tmp_path).put("a.png", "\ud800")


def test_changes_by_another_program_are_read(tmp_path: Path) -> None:
    labels = table(tmp_path)
    assert not labels.refresh()
    other = table(tmp_path)
    other.put("a.png", "cat")
    other.write()
    assert labels.refresh()
    assert labels.rows == {"a.png": "cat"}
    assert not labels.refresh()
    (tmp_path / "labels.csv").unlink()
    assert labels.refresh()
    assert labels.rows == {}


def test_a_link_leads_to_the_same_file_afterward(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "labels.csv").symlink_to(tmp_path / "real" / "own.csv")
    labels = LabelsTable(tmp_path / "labels.csv")
    labels.put("a.png", "cat")
    labels.write()
    assert (tmp_path / "labels.csv").is_symlink()
    assert LabelsTable(tmp_path / "real" / "own.csv").rows == {"a.png": "cat"}


def test_one_writer_at_a_time_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "labels.csv")
    message = f"is in use by process {os.getpid()}.*another file"
    with table(tmp_path).hold(), pytest.raises(ModelError, match=message):
        LabelsTable(tmp_path / "link.csv").hold()
    table(tmp_path).hold().close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv"]
