import time

import pytest
from case_folders import case_folders  # noqa: F401
from test_data_folders import counts, noted, picture

from ssl_toolkit.data.folders import read_folder
from ssl_toolkit.errors import DataError


def test_links_of_case_14(cases):
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        read_folder(cases / "c14_links")
    assert len(caught.value.messages) == 2
    assert "gone.png: broken link" in caught.value.messages[0]
    assert "--on-bad-image skip" in caught.value.messages[1]
    table = read_folder(cases / "c14_links", on_bad_image="skip")
    assert time.monotonic() - start < 10
    assert counts(table) == {"labelled": 17, "unlabelled": 12, "test": 12}
    assert noted(table, "gone.png") == "skipped unlabeled/gone.png: broken link"
    assert noted(table, "unreadable pictures skipped").endswith("1 of 42")
    assert noted(table, "links not followed").endswith("unlabeled/loop")


def test_linked_folders(tmp_path):
    root = tmp_path / "data"
    for name in ("labeled/a/1.png", "labeled/b/1.png", "test/a/1.png", "unlabeled/z/1.png"):
        picture(root / name)
    picture(tmp_path / "elsewhere" / "deep" / "2.png")
    picture(tmp_path / "beside" / "3.png")  # only reached through the folder above the data
    (tmp_path / "elsewhere" / "round").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    pool = root / "unlabeled"
    (pool / "a_more").symlink_to(tmp_path / "elsewhere")  # followed
    (pool / "more_again").symlink_to(tmp_path / "elsewhere")  # was met
    (pool / "a_same").symlink_to("z")  # a real folder of the pool
    (pool / "leak").symlink_to("../test/a")
    (pool / "leak.png").symlink_to("../test/a/1.png")
    (pool / "up").symlink_to(tmp_path)
    (root / "test" / "b").symlink_to("../labeled/b")
    (root / "labeled" / "loop").symlink_to(".")
    table = read_folder(root)
    assert table.classes == ("a", "b")
    assert [key for key in table.keys if key.startswith("unlabeled")] == [
        "unlabeled/a_more/deep/2.png",
        "unlabeled/z/1.png",
    ]
    assert counts(table) == {"labelled": 2, "unlabelled": 2, "test": 1}
    line = noted(table, "links not followed")
    for link in ("a_more/back", "a_more/round", "more_again", "a_same", "leak", "leak.png", "up"):
        assert f"unlabeled/{link}" in line
    assert "test/b" in line
    assert "labeled/loop" in line


def test_a_split_may_be_a_link_but_not_to_another(tmp_path):
    root = tmp_path / "data"
    for name in ("labeled/a/1.png", "labeled/b/1.png"):
        picture(root / name)
    picture(tmp_path / "pool" / "1.png")
    (root / "unlabeled").symlink_to(tmp_path / "pool")
    assert counts(read_folder(root)) == {"labelled": 2, "unlabelled": 1}
    (root / "test").symlink_to("labeled")
    with pytest.raises(DataError, match="lead to the same pictures"):
        read_folder(root)


def test_a_test_split_elsewhere_stays_out_of_the_pool(tmp_path):
    root = tmp_path / "data"
    for name in ("data/labeled/a/1.png", "data/labeled/b/1.png", "tests/a/1.png"):
        picture(tmp_path / name)
    (root / "test").symlink_to(tmp_path / "tests")
    (root / "unlabeled").mkdir()
    (root / "unlabeled" / "more").symlink_to(tmp_path / "tests" / "a")
    table = read_folder(root)
    assert counts(table) == {"labelled": 2, "test": 1}
    assert "unlabeled/more" in noted(table, "links not followed")
