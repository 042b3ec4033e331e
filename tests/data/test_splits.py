import dataclasses
import shutil
from collections import Counter

import numpy as np
import pytest
from case_folders import case_folders  # noqa: F401
from split_tables import table_of
from ssl_toolkit_benchmarks import SVHN

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.splits.draw import Split, draw_split, identical_rows, proportional
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable


def per_class(table: ImageTable, rows) -> list[int]:
    return np.bincount(table.labels[rows], minlength=len(table.classes)).tolist()


def sizes(split: Split) -> tuple[int, int, int, int]:
    return tuple(
        len(rows) for rows in (split.labeled, split.unlabeled, split.validation, split.test)
    )


def test_the_labeled_layout_is_used_unchanged(cases):
    table = read_data(cases / "c00_base")
    split = draw_split(table, seed=0)
    assert sizes(split) == (16, 12, 0, 12)
    assert split.labeled.dtype == np.int64
    assert split.warnings == ()
    assert sizes(draw_split(read_data(cases / "c05_modes"), seed=0)) == (18, 13, 0, 12)


def test_case_14_links(cases):
    split = draw_split(read_data(cases / "c14_links", size=8, on_bad_image="skip"), seed=0)
    assert sizes(split) == (17, 12, 0, 12)


def test_case_16_labeled_pictures_in_the_folder(cases):
    table = read_data(cases / "c16_labeled_in_unlabeled")
    assert len(draw_split(table, seed=0).unlabeled) == 28
    assert len(draw_split(table, seed=0, labeled_in_pool=True).unlabeled) == 28
    off = draw_split(table, seed=0, labeled_in_pool=False)
    assert len(off.unlabeled) == 12
    assert all(table.keys[row].startswith("unlabeled/u_") for row in off.unlabeled)
    assert "16" in off.notes[0]


def test_case_16_single_pool(cases, tmp_path):
    for kind in "ab":
        shutil.copytree(cases / "c17_pool" / kind, tmp_path / kind)
    table = read_data(tmp_path)
    splits = {
        option: draw_split(table, seed=3, labels_per_class=2, labeled_in_pool=option)
        for option in (None, False, True)
    }
    counts = {option: len(split.unlabeled) for option, split in splits.items()}
    assert counts == {None: 16, False: 16, True: 20}
    for split in splits.values():
        assert split.labeled.tolist() == splits[None].labeled.tolist()
        assert per_class(table, split.labeled) == [2, 2]
    assert set(splits[True].labeled) < set(splits[True].unlabeled)
    assert not set(splits[False].labeled) & set(splits[False].unlabeled)


def test_case_17_too_few_for_labels_per_class(cases):
    table = read_data(cases / "c17_pool")
    with pytest.raises(DataError) as caught:
        draw_split(table, seed=0, labels_per_class=4)
    assert len(caught.value.messages) == 2
    assert caught.value.messages[0].startswith("class 'c' has 1 of the 4 ")
    assert caught.value.messages[1].startswith("class 'd' has 2 of the 4 ")


def test_case_17_one_a_class_and_validation(cases):
    table = read_data(cases / "c17_pool")
    split = draw_split(table, seed=0, labels_per_class=1, val_fraction=0.5)
    assert per_class(table, split.labeled) == [1, 1, 1, 1]
    assert per_class(table, split.validation) == [5, 5, 0, 1]
    assert len(split.unlabeled) == 23 - 4 - 11
    (line,) = [line for line in split.warnings if "validation" in line]
    assert "for class c:" in line
    (line,) = [line for line in split.warnings if "only one labeled" in line]
    assert line.endswith("4 classes: a, b, c, d")
    assert not any("far fewer" in line for line in split.warnings)  # one label in each class
    assert any("no test images" in line for line in split.warnings)


def test_case_17_total_number(cases):
    table = read_data(cases / "c17_pool")
    split = draw_split(table, seed=0, num_labels=10)
    assert per_class(table, split.labeled) == [4, 4, 1, 1]
    assert "a 4, b 4, c 1, d 1" in split.notes[0]


def test_case_17b_long_tail(cases):
    table = read_data(cases / "c17b_long_tail")
    split = draw_split(table, seed=0)
    assert sizes(split) == (33, 20, 0, 20)
    (line,) = [line for line in split.warnings if "far fewer" in line]
    assert line == "far fewer labels than the largest class (24): c 2, d 1"
    (line,) = [line for line in split.warnings if "only one labeled" in line]
    assert line.endswith("1 classes: d")


@pytest.mark.parametrize("request_", [{"labels_per_class": 3}, {"num_labels": 9}, {}])
def test_parts_never_overlap_and_nothing_is_lost(request_):
    table = table_of([12, 10, 8])
    split = draw_split(table, seed=1, val_fraction=0.25, test_fraction=0.2, **request_)
    rows = [*split.labeled, *split.unlabeled, *split.validation, *split.test]
    assert sorted(rows) == list(range(30))
    assert per_class(table, split.test) == [2, 2, 2]
    assert per_class(table, split.validation) == [3, 2, 2]  # of 10, 8, 6 that are not test
    both = draw_split(
        table, seed=1, val_fraction=0.25, test_fraction=0.2, labeled_in_pool=True, **request_
    )
    assert both.labeled.tolist() == split.labeled.tolist()
    held_out = {*split.validation, *split.test}
    assert set(both.unlabeled) == set(range(30)) - held_out


def test_same_seed_same_split_other_seed_another():
    table = table_of([40, 40])
    first, again, other = (draw_split(table, seed=s, labels_per_class=4) for s in (0, 0, 1))
    assert first.labeled.tolist() == again.labeled.tolist()
    assert first.labeled.tolist() != other.labeled.tolist()


def test_more_labels_and_other_options_keep_the_first_ones():
    table = table_of([40, 40])
    few = set(draw_split(table, seed=0, labels_per_class=4).labeled)
    assert few < set(draw_split(table, seed=0, labels_per_class=9).labeled)
    assert few == set(draw_split(table, seed=0, labels_per_class=4, val_fraction=0.2).labeled)


def test_a_removed_image_moves_no_other():
    table = table_of([40, 40])
    before = {table.keys[row] for row in draw_split(table, seed=0, labels_per_class=4).labeled}
    kept = [row for row, key in enumerate(table.keys) if key != min(before)]
    smaller = dataclasses.replace(
        table,
        keys=tuple(table.keys[row] for row in kept),
        labels=table.labels[kept],
        splits=table.splits[kept],
    )
    split = draw_split(smaller, seed=0, labels_per_class=4)
    assert len({smaller.keys[row] for row in split.labeled} & before) == 7


def test_choices_are_spread_evenly():
    table = table_of([10])
    table = dataclasses.replace(table, classes=("a",))
    seen = Counter()
    for seed in range(300):
        seen.update(draw_split(table, seed=seed, labels_per_class=3).labeled.tolist())
    assert set(seen) == set(range(10))
    assert all(60 <= count <= 120 for count in seen.values())  # 90 expected, 4 sigma = 32


def test_validation_from_a_labeled_folder_leaves_one_per_class():
    table = table_of([4, 2, 1], "labeled", unlabeled=5, test=3)
    split = draw_split(table, seed=0, val_fraction=0.9)
    assert per_class(table, split.labeled) == [1, 1, 1]
    assert per_class(table, split.validation) == [3, 1, 0]
    assert len(split.unlabeled) == 5
    assert any("no validation image for class c" in line for line in split.warnings)


def test_labeled_folder_is_never_moved_into_the_pool():
    table = table_of([4, 4], "labeled", unlabeled=5)
    split = draw_split(table, seed=0, labels_per_class=2, val_fraction=0.25)
    assert sizes(split) == (4, 5, 2, 0)
    assert set(table.splits[split.unlabeled]) == {"unlabeled"}
    assert len(draw_split(table, seed=0, labeled_in_pool=True).unlabeled) == 5


def test_pool_with_unlabeled_part():
    table = table_of([6, 6], "pool", unlabeled=7, test=4)
    split = draw_split(table, seed=0, labels_per_class=2)
    assert sizes(split) == (4, 8 + 7, 0, 4)
    assert sizes(draw_split(table, seed=0)) == (12, 7, 0, 4)


def test_fractions_for_parts_that_exist():
    table = table_of([6, 6], "pool", test=4)
    with pytest.raises(DataError, match=r"has a test split of its own; leave --test-fraction out"):
        draw_split(table, seed=0, test_fraction=0.2)
    table = table_of([6, 6], "labeled")
    with pytest.raises(DataError, match="draws from a pool"):
        draw_split(table, seed=0, test_fraction=0.2)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"num_labels": 1}, "--num-labels must be between 2, one per class, and 12"),
        ({"num_labels": 13}, "and 12, the images with a label; got 13"),
        ({"num_labels": 4, "labels_per_class": 2}, "can't be used together"),
    ],
)
def test_requests_out_of_range(request_, words):
    with pytest.raises(DataError, match=words):
        draw_split(table_of([6, 6]), seed=0, **request_)


def test_a_class_without_labels_is_named():
    table = dataclasses.replace(table_of([6, 6]), classes=("a", "b", "z"))
    with pytest.raises(DataError, match="class 'z' has no image with a label"):
        draw_split(table, seed=0)


def test_the_test_split_leaves_one_image_per_class():
    table = table_of([1, 2, 5])
    split = draw_split(table, seed=0, test_fraction=0.9)
    assert per_class(table, split.test) == [0, 1, 4]
    assert per_class(table, split.labeled) == [1, 1, 1]


def test_proportional_shares():
    assert proportional([10, 10, 1, 2], 10) == [4, 4, 1, 1]
    assert proportional([5, 5, 5], 4) == [2, 1, 1]
    assert proportional([1000, 1, 1], 3) == [1, 1, 1]
    rng = np.random.default_rng(0)
    for _ in range(200):
        classes = rng.integers(1, 30, rng.integers(1, 9)).tolist()
        total = int(rng.integers(len(classes), sum(classes) + 1))
        shares = proportional(classes, total)
        assert sum(shares) == total
        assert all(1 <= share <= size for share, size in zip(shares, classes, strict=True))


def test_identical_images_need_a_digest():
    table = table_of([2], "labeled", unlabeled=1)
    with pytest.raises(DataError, match="has no digests to compare images by"):
        identical_rows(table, np.array([2]), np.array([0]))
    assert len(identical_rows(table, np.array([2]), np.array([], dtype=np.int64))) == 0


def test_svhn_validation_has_5000_images():
    counts = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
    assert sum(counts) == 73257
    table = table_of(counts)
    split = draw_split(table, seed=0, labels_per_class=100, val_fraction=SVHN.defaults.val_fraction)
    assert len(split.validation) == 5000
