"""Rules on data sets. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import get_args

import numpy as np

from ssl_toolkit.data.cache.image_files import open_files
from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import DatasetDefaults, ImageTable
from ssl_toolkit.interfaces.datasets import Part
from ssl_toolkit.testing.rules import require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import listed

SOME = 40
"""Images that are looked at."""


@rule(
    "datasets",
    why="predictions are reported by these names.",
    cause="names read from folders of which two differ in a space alone",
)
def classes_are_named(subject: Subject) -> None:
    """There are at least two classes, with names that are not empty and all different."""
    classes = subject.table.classes
    require(len(classes) >= 2, f"the classes are {classes}")
    require(all(isinstance(c, str) and c.strip() for c in classes), "a name is no text, or empty")
    double = sorted({c for c in classes if classes.count(c) > 1})
    require(not double, f"{listed(double)} occur more than once")


@rule(
    "datasets",
    why="splits are drawn and written down by keys; they have to mean the same elsewhere.",
    cause="absolute paths, or the names of files without their folders",
)
def keys_are_stable(subject: Subject) -> None:
    """There is a key for each image, unique and not the path of this machine."""
    table = subject.table
    keys = [*table.keys]
    require(len(keys) == len(table.labels), f"{len(keys)} keys for {len(table.labels)} images")
    require(len(set(keys)) == len(keys), f"{len(keys) - len(set(keys))} keys occur twice")
    absolute = [key for key in keys if _is_absolute(key)]
    require(not absolute, f"key {absolute[:1]} is an absolute path")


@rule(
    "datasets",
    why="a label that is off by one trains on another class.",
    cause="labels that count from 1, or text in place of numbers",
)
def labels_are_indices(subject: Subject) -> None:
    """Labels are (N,) int64, an index into the classes or -1."""
    table = subject.table
    labels = np.asarray(table.labels)
    good = labels.ndim == 1 and labels.dtype == np.int64
    require(good, f"labels are {labels.shape} {labels.dtype}")
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    inside = low >= -1 and high < len(table.classes)
    require(inside, f"labels go from {low} to {high}, and there are {len(table.classes)} classes")


@rule(
    "datasets",
    why="a class without labels can't be learned, nor scored.",
    cause="classes of another version of the data set",
)
def every_class_has_labels(subject: Subject) -> None:
    """Each class has a labeled image to train on, and where there is a test part one there."""
    table = subject.table
    parts = np.asarray(table.parts)
    for purpose, names in {"train on": ("pool", "labeled"), "test": ("test",)}.items():
        labels = np.asarray(table.labels)[np.isin(parts, names)]
        if not len(labels) and purpose == "test":
            continue
        missing = [c for i, c in enumerate(table.classes) if not (labels == i).any()]
        require(not missing, f"{listed(missing[:3])} have no labeled image to {purpose}")


@rule(
    "datasets",
    why="parts say what may be trained on; an unknown one would be ignored silently.",
    cause="'train' or 'val' in place of 'pool' or 'validation'",
)
def parts_are_known(subject: Subject) -> None:
    """Each image is in one of the known parts."""
    table = subject.table
    parts = np.asarray(table.parts)
    require(parts.shape == (len(table.labels),), f"parts are {parts.shape}")
    unknown = sorted({*parts.tolist()} - {*get_args(Part)})
    require(not unknown, f"parts {listed(unknown)}; known are {listed([*get_args(Part)])}")


@rule(
    "datasets",
    why="images are read by row, in any order and at the image size of the run.",
    cause="read ignores the order of the rows or the size, or gives floats",
)
def images_are_read_by_row(subject: Subject) -> None:
    """`read` gives (n, size, size, 3) uint8 of the very rows, at any size."""
    table = subject.table
    rows = _some(table)
    for size in (16, subject.plugin.defaults.image_size):
        images = table.read(rows, size)
        message = f"{images.shape} {images.dtype}"
        good = images.shape == (len(rows), size, size, 3) and images.dtype == np.uint8
        require(good, f"at size {size}, {len(rows)} rows are {message}")
        turned = table.read(rows[::-1].copy(), size)[::-1]
        require(np.array_equal(images, turned), "rows in another order give other images")


@rule(
    "datasets",
    why="nothing can be learned from empty or equal images.",
    cause="a wrong offset, channel order or scale when they are decoded",
)
def images_differ(subject: Subject) -> None:
    """Images differ, and are not all of a single level."""
    table = subject.table
    images = table.read(_some(table), subject.plugin.defaults.image_size)
    require(images.std(axis=(1, 2, 3)).max() > 0, "each image is of one level")
    require(bool((images != images[:1]).any()), "all images are the same")


@rule(
    "datasets",
    why="a run, its splits and its repetition have to see the same data.",
    cause="files in the order of the disk, or a shuffle; sort them",
)
def loading_is_repeatable(subject: Subject) -> None:
    """Loaded twice, keys, labels, parts and images are the same; no global generator is used."""
    first = subject.table
    before = random_states()
    second = open_files(subject.plugin().load(subject.root))
    after = random_states()
    require(first.classes == second.classes, "classes differ")
    require([*first.keys] == [*second.keys], "keys differ")
    require(np.array_equal(first.labels, second.labels), "labels differ")
    require(np.array_equal(first.parts, second.parts), "parts differ")
    rows, size = _some(first), subject.plugin.defaults.image_size
    require(np.array_equal(first.read(rows, size), second.read(rows, size)), "images differ")
    used = [name for name in ("python", "numpy") if before[name] != after[name]]
    require(not used, f"load draws from the global generator of {listed(used)}")


@rule(
    "datasets",
    why="the same image in training and test would be found by it.",
    cause="a hash of the row's number or of the file's name",
)
def digests_tell_images_apart(subject: Subject) -> None:
    """Where there is a digest, it is the same for a row each time, and differs between images."""
    table = subject.table
    if table.digest is None:
        return
    rows = _some(table)
    digests = [table.digest(int(row)) for row in rows]
    require(all(isinstance(d, str) and d for d in digests), "a digest is no text, or empty")
    require(digests == [table.digest(int(row)) for row in rows], "digests change")
    images = table.read(rows, 32)
    alike = [np.array_equal(images[0], image) for image in images]
    wrong = [d for d, same in zip(digests, alike, strict=True) if d == digests[0] and not same]
    require(not wrong, "images that differ have the same digest")


@rule(
    "datasets",
    why="users give --root; a traceback does not help them.",
    cause="the OSError of a missing file is not caught; raise DataError with the path",
)
def missing_files_are_told(subject: Subject) -> None:
    """A `root` without the files is a `DataError` in one line, if the files are needed at all."""
    try:
        subject.plugin().load(Path("no-such-folder"))
    except DataError as error:
        for message in error.messages:
            require("\n" not in message, f"the message has several lines: {message!r}")


@rule(
    "datasets",
    why="they are what a run without further flags uses.",
    cause="a side of 0, a fraction in percent, or levels from 0 to 255",
)
def defaults_are_plausible(subject: Subject) -> None:
    """The defaults have sizes of at least 1, shares in [0, 1) and statistics of [0, 1]."""
    defaults = subject.plugin.defaults
    require(isinstance(defaults, DatasetDefaults), f"defaults is {defaults!r}")
    sizes = [defaults.image_size, defaults.batch_size, defaults.min_stride_size]
    sizes += [defaults.labels_per_class]
    require(all(s is None or s >= 1 for s in sizes), f"a size is below 1: {defaults}")
    shares = defaults.val_fraction, defaults.test_fraction
    require(all(0 <= s < 1 for s in shares) and sum(shares) < 1, f"shares are {shares}")
    require((defaults.mean is None) == (defaults.std is None), "mean without std, or the reverse")
    if defaults.mean is not None and defaults.std is not None:
        good = all(0 <= m <= 1 for m in defaults.mean) and all(0 < s <= 1 for s in defaults.std)
        require(good, f"mean is {defaults.mean}, std {defaults.std}")


def _some(table: ImageTable) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows from all over the table."""
    count = len(table.labels)
    return np.unique(np.linspace(0, count - 1, min(SOME, count)).astype(np.int64))


def _is_absolute(key: str) -> bool:
    return PurePosixPath(key).is_absolute() or PureWindowsPath(key).is_absolute()
