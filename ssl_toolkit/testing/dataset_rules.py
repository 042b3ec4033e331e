"""Rules for data sets. Nothing is downloaded."""

from __future__ import annotations

from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import get_args

import numpy as np

from ssl_toolkit.config.images import sides
from ssl_toolkit.data.readers.arrays import FittedRead
from ssl_toolkit.data.readers.image_files import open_files
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import DatasetDefaults, ImageTable
from ssl_toolkit.interfaces.datasets import SplitName
from ssl_toolkit.testing.assertions import listed, no_global_draws, require_statistics
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject

SAMPLE = 40
"""Maximum number of images to read."""


def has_distinct_class_names(subject: Subject) -> None:
    """There are at least two classes with distinct names that are not empty.

    Why: predictions are reported by these names.
    Cause: names of folders that only differ in whitespace.
    """
    classes = subject.table.classes
    require(len(classes) >= 2, f"classes are {classes}")
    valid = all(isinstance(name, str) and name.strip() for name in classes)
    require(valid, "a name is not a text, or empty")
    duplicates = sorted({c for c in classes if classes.count(c) > 1})
    require(not duplicates, f"{listed(duplicates)} occur more than once")


def has_stable_keys(subject: Subject) -> None:
    """Every image has a unique key that is not an absolute path.

    Why: split files store keys, which must be valid on other machines.
    Cause: absolute paths, or file names without their folders.
    """
    table = subject.table
    keys = [*table.keys]
    require(len(keys) == len(table.labels), f"{len(keys)} keys for {len(table.labels)} images")
    require(len({*keys}) == len(keys), f"{len(keys) - len({*keys})} keys are duplicates")
    paths = PurePosixPath, PureWindowsPath
    absolute = [key for key in keys if any(path(key).is_absolute() for path in paths)]
    require(not absolute, f"key {absolute[:1]} is an absolute path")


def has_label_indices(subject: Subject) -> None:
    """Labels are (N,) int64: indices of classes, or -1.

    Why: a label that is off by one trains another class.
    Cause: labels that start at 1, or texts instead of numbers.
    """
    labels = np.asarray(subject.table.labels)
    valid = labels.ndim == 1 and labels.dtype == np.int64
    require(valid, f"labels are {labels.shape} {labels.dtype}")
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    count = len(subject.table.classes)
    require(low >= -1 and high < count, f"labels range from {low} to {high} for {count} classes")


def labels_every_class(subject: Subject) -> None:
    """Every class has a labeled image to train on, and one to test on if there are test images.

    Why: a class without labels can neither be learned nor scored.
    Cause: classes of another version of the data set.
    """
    table = subject.table
    for purpose, names in {"train on": ("pool", "labeled"), "test": ("test",)}.items():
        labels = np.asarray(table.labels)[np.isin(np.asarray(table.splits), names)]
        if not len(labels) and purpose == "test":
            continue
        missing = [c for i, c in enumerate(table.classes) if not (labels == i).any()]
        require(not missing, f"{listed(missing[:3])} have no labeled image to {purpose}")


def has_valid_splits(subject: Subject) -> None:
    """Every image is in one of the valid splits.

    Why: images in an unknown split would be ignored silently.
    Cause: 'train' or 'val' instead of 'pool' or 'validation'.
    """
    splits = np.asarray(subject.table.splits)
    require(splits.shape == (len(subject.table.labels),), f"splits are {splits.shape}")
    known = get_args(SplitName)
    unknown = sorted({*splits.tolist()} - {*known})
    require(not unknown, f"unknown splits {listed(unknown)}; valid are {listed(known)}")


def reads_images_by_row(subject: Subject) -> None:
    """`read` returns (N, height, width, 3) uint8 for any rows, in their order, at any size.

    Why: images are read in random order at the image size of the run.
    Cause: read ignores the order of the rows or the size, or returns floats.
    """
    table = subject.table
    rows = _sample(table)
    for size in (16, subject.plugin.defaults.image_size):
        images = table.read(rows, size)
        valid = images.shape == (len(rows), *sides(size), 3) and images.dtype == np.uint8
        actual = f"{images.shape} {images.dtype}"
        require(valid, f"at size {size}, {len(rows)} rows are {actual}")
        reverse = table.read(rows[::-1].copy(), size)[::-1]
        require(np.array_equal(images, reverse), "rows in another order give other images")


def has_distinct_images(subject: Subject) -> None:
    """Images differ, and are not all constant.

    Why: nothing can be learned from empty or equal images.
    Cause: a wrong offset, channel order or scale in decoding.
    """
    images = subject.table.read(_sample(subject.table), subject.plugin.defaults.image_size)
    require(images.std(axis=(1, 2, 3)).max() > 0, "every image is constant")
    require((images != images[:1]).any(), "all images are equal")


def loads_reproducibly(subject: Subject) -> None:
    """Two loads give equal classes, keys, labels, splits and images, without global draws.

    Why: a repeated or resumed run must use the same data.
    Cause: files in the order of the file system, or a shuffle; sort them.
    """
    first = subject.table
    with no_global_draws("load", ("python", "numpy")):
        second = open_files(subject.plugin().load(subject.root))
    for field in ("classes", "keys", "labels", "splits"):
        equal = [*getattr(first, field)] == [*getattr(second, field)]
        require(equal, f"{field} differ")
    rows, size = _sample(first), subject.plugin.defaults.image_size
    require(np.array_equal(first.read(rows, size), second.read(rows, size)), "images differ")


def has_distinct_digests(subject: Subject) -> None:
    """`digest`, if any, returns a constant text per row, which differs between different images.

    Why: it detects test images that are also training images.
    Cause: a hash of the row number or the file name.
    """
    table = subject.table
    if table.digest is None:
        return
    rows = _sample(table)
    digests = [table.digest(int(row)) for row in rows]
    require(all(isinstance(d, str) and d for d in digests), "a digest is not a text, or empty")
    require(digests == [table.digest(int(row)) for row in rows], "digests differ between calls")
    images = table.read(rows, 32)
    equal = [np.array_equal(images[0], image) for image in images]
    wrong = [d for d, same in zip(digests, equal, strict=True) if d == digests[0] and not same]
    require(not wrong, "different images have the same digest")


def reports_missing_files(subject: Subject) -> None:
    """A `root` without the files raises a `DataError` of one line, if files are needed.

    Why: users set --root, and a traceback doesn't help them.
    Cause: an uncaught FileNotFoundError; raise DataError with the path.
    """
    try:
        subject.plugin().load(Path("no-such-folder"))
    except DataError as error:
        for message in error.messages:
            require("\n" not in message, f"the message has several lines: {message!r}")


def has_valid_defaults(subject: Subject) -> None:
    """`defaults` has sizes of at least 1, fractions in [0, 1) and statistics in [0, 1].

    Why: runs without further options use them.
    Cause: a size of 0, a pair of sides for a `read` of squares, a fraction in percent, or
        statistics of levels from 0 to 255.
    """
    defaults = subject.plugin.defaults
    require(isinstance(defaults, DatasetDefaults), f"defaults is {defaults!r}")
    shapes = [sides(s) for s in (defaults.image_size, defaults.min_stride_size) if s is not None]
    sizes = [defaults.batch_size, defaults.labels_per_class, *chain(*shapes)]
    require(all(s is None or s >= 1 for s in sizes), f"a size is below 1: {defaults}")
    square = all(height == width for height, width in shapes)
    fitted = subject.table.files is not None or isinstance(subject.table.read, FittedRead)
    require(square or fitted, "a pair of sides needs a table with `files` or of `array_table`")
    fractions = defaults.val_fraction, defaults.test_fraction
    valid = all(0 <= fraction < 1 for fraction in fractions) and sum(fractions) < 1
    require(valid, f"the fractions for validation and test are {fractions}")
    require_statistics(defaults.mean, defaults.std)


def _sample(table: ImageTable) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return rows from all splits of the table."""
    count = len(table.labels)
    return np.unique(np.linspace(0, count - 1, min(SAMPLE, count)).astype(np.int64))
