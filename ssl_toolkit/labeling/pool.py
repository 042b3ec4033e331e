"""The images that may be labeled next, and those that have a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.cache import Progress
from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.load import load_table
from ssl_toolkit.data.packed_strings import index_of
from ssl_toolkit.data.readers.rows import RowErrors, records
from ssl_toolkit.data.splits.draw import Rows
from ssl_toolkit.data.splits.duplicates import same_images
from ssl_toolkit.data.splits.labels_file import listed_rows
from ssl_toolkit.data.splits.split_file import SplitFile
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path


@dataclass(frozen=True)
class Pool:
    """Images of a table with a label, and the candidates to label next."""

    table: ImageTable
    classes: tuple[str, ...]
    """Names of the classes known so far; may be empty."""
    labeled: Rows
    """(n,) rows of images with a label."""
    labels: NDArray[np.int64]
    """(n,) index into `classes` of each."""
    candidates: Rows
    """(m,) rows that may be labeled next, ascending: neither labeled nor skipped, no validation or
    test image, and no duplicate of one of these or of an earlier candidate."""

    @property
    def rows(self) -> Rows:
        """The labeled images, then the candidates, (n + m,)."""
        return np.concatenate([self.labeled, self.candidates])

    def keys(self, rows: Rows) -> list[str]:
        """Return the names of the images in some rows."""
        return [self.table.keys[row] for row in rows.tolist()]


def pool_of_data(table: ImageTable, labels: Path | None, base: Path | None) -> Pool:
    """Return the pool of data.

    Args:
        table: The images.
        labels: Path to a labels file; its images with an empty label are skipped. If data without
            labels are among the images, those of the data count too, else only those of the file.
            A list of images takes the data's labels for these only. None for the labels of the
            data.
        base: The folder of the data; None if there is none.

    Raises:
        DataError: The labels file can't be read, or names unknown, validation or test images.
    """
    held_out = np.flatnonzero(np.isin(table.splits, ("validation", "test")))
    if labels is not None:
        return _pool(table, held_out, *_read_labels(table, labels, base))
    return _pool(table, held_out, labels_of_data(table), ())


def labels_of_data(table: ImageTable) -> dict[int, str]:
    """Return the class by row of the images that have a label, without validation and test ones."""
    trained = np.isin(table.splits, ("labeled", "pool"))
    labeled = np.flatnonzero(trained & (table.labels >= 0))
    return {row: table.classes[table.labels[row]] for row in labeled.tolist()}


def has_unlabeled(table: ImageTable) -> bool:
    """Return True if some images have no label, so that the labels of the others are kept."""
    held_out = int(np.isin(table.splits, ("validation", "test")).sum())
    return len(labels_of_data(table)) + held_out < len(table.keys)


def pool_of_run(
    run: Path, labels: Path | None, data: Path | None = None, progress: Progress | None = None
) -> Pool:
    """Return the pool of a run.

    Args:
        run: Folder of the run.
        labels: Path to a labels file that replaces the labeled images of the run; None for these.
        data: Path to its images, if they were moved.
        progress: Called while images are decoded.

    Raises:
        UserError: The run or its data can't be read, the labels file as for `pool_of_data`, or the
            run is one of several classes per image.
    """
    folder = RunFolder(run)
    settings = folder.reopen(data).settings
    if settings.task == "multilabel":
        raise ConfigError(
            f"{display_path(run)}: trained with --task multilabel; images to label next are chosen "
            "for one class per image only"
        )
    if settings.data is not None and labels is not None:
        settings = settings.model_copy(update={"labels": str(labels)})
    table = load_table(settings, progress)
    split = SplitFile.read(folder.split)
    held_out = index_of(table.keys, [*split.validation, *split.test])
    held_out = held_out[held_out >= 0]
    if labels is None and settings.data is not None and settings.labels is not None:
        labels = Path(settings.labels)
    if labels is not None:
        place = None if settings.data is None else Path(settings.root or settings.data)
        base = place if place is None or place.is_dir() else place.parent
        return _pool(table, held_out, *_read_labels(table, labels, base))
    pseudo = set[str]()
    if settings.pseudo_labels is not None:  # labels that no person assigned
        found = records(folder.pseudo_labels, RowErrors(""), "path", [])
        pseudo = {key for _, key, label, _ in found if label}
    rows = index_of(table.keys, [key for key in split.labeled if key not in pseudo])
    if missing := int((rows < 0).sum()):
        raise DataError(
            f"{display_path(folder.split)}: the data no longer has {missing:,} of its labeled "
            "images; restore them, or name the images with a label by --labels FILE"
        )
    names = {row: table.classes[table.labels[row]] for row in rows.tolist()}
    return _pool(table, held_out, names, ())


def _read_labels(
    table: ImageTable, path: Path, base: Path | None
) -> tuple[dict[int, str], list[int]]:
    """Return the class by row, and the rows of images that were skipped."""
    bad = RowErrors(display_path(path))
    entries, rows, labeled = listed_rows(table, path, base, bad)
    names: dict[int, str] = {}
    skipped: list[int] = []
    lines: dict[int, int] = {}
    for (line, text, label, _), row in zip(entries, rows.tolist(), strict=True):
        if row < 0:
            bad.add(line, f"the data has no image {text!r}")
            continue
        own, part = int(table.labels[row]), table.splits[row]
        if not labeled and own >= 0:
            label = table.classes[own]
        if row in lines:
            bad.add(line, f"{text!r} is already in line {lines[row]}")
        elif part in ("validation", "test"):
            bad.add(line, f"{text!r} is a {part} image")
        elif not labeled and own < 0:
            bad.add(line, f"{text!r} has no label in the data; give one in a .csv: path,label")
        elif label and own >= 0 and table.classes[own] != class_name(label):
            name = table.classes[own]
            hint = did_you_mean(label, table.classes)
            bad.add(line, f"{text!r} is a {label!r} here and a {name!r} in the data{hint}")
        elif label:
            names[row] = class_name(label)
        else:
            skipped.append(row)
        lines[row] = line
    bad.refuse()
    if labeled and has_unlabeled(table):
        names = labels_of_data(table) | names
    return names, skipped


def _pool(
    table: ImageTable, held_out: Rows, names: Mapping[int, str], skipped: Sequence[int]
) -> Pool:
    held_out = np.union1d(held_out, np.flatnonzero(np.isin(table.splits, ("validation", "test"))))
    labeled = np.array(sorted(set(names) - {*held_out.tolist()}), dtype=np.int64)
    classes = tuple(sorted({*table.classes, *names.values()}))
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[names[row]] for row in labeled.tolist()], dtype=np.int64)
    taken = np.zeros(len(table.keys), dtype=bool)
    taken[held_out], taken[labeled], taken[list(skipped)] = True, True, True
    for rows in same_images(table, np.arange(len(table.keys))):
        # One image of a group is enough, and none if it has a label or is a test image.
        taken[rows if taken[rows].any() else rows[1:]] = True
    return Pool(table, classes, labeled, labels, np.flatnonzero(~taken))
