"""Names and order of the classes of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import Settings
from ssl_toolkit.data.class_names import class_name, name_fault
from ssl_toolkit.errors import DataError, PluginError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.interfaces.datasets import STRANGER, SplitName
from ssl_toolkit.text import display_path, summarize


def add_classes(table: ImageTable, names: Sequence[str], path: str) -> ImageTable:
    """Return a table with too few classes with those of a labels file too.

    Args:
        table: The images.
        names: Classes of the labels file, or of the settings.
        path: Path to the labels file, for messages.

    Raises:
        DataError: There are fewer than two classes.
    """
    classes = tuple(dict.fromkeys(map(class_name, (*names, *table.classes))))
    if len(classes) < 2:
        only = f" ({classes[0]})" if classes else ""
        raise DataError(
            f"--labels {display_path(Path(path))}: has labels of {len(classes)} classes{only}; at "
            "least two are needed to train"
        )
    index = np.array([classes.index(name) for name in table.classes] + [-1], dtype=np.int64)
    if table.label_sets is not None:
        return _with_columns(table, classes, index[:-1])
    return replace(table, classes=classes, labels=index[table.labels])


def reorder_classes(table: ImageTable, settings: Settings) -> ImageTable:
    """Return the table with its classes in the order of ``classes``.

    Raises:
        DataError: They are not those of the data; a labels file may have further ones.
    """
    classes = [*map(class_name, settings.classes or ())]
    missing = sorted(set(table.classes) - set(classes))
    unknown = sorted(set(classes) - set(table.classes)) if settings.labels is None else []
    if missing or unknown or len(classes) != len({*classes}):
        raise DataError(
            f"classes: the data has {summarize(table.classes)}; the list given lacks "
            f"{summarize(missing) or 'none'} and adds {summarize(unknown) or 'none'}"
        )
    index = np.array([classes.index(name) for name in table.classes], dtype=np.int64)
    if table.label_sets is not None:
        return _with_columns(table, tuple(classes), index)
    labels = np.where(table.labels >= 0, index[table.labels], -1).astype(np.int64)
    return replace(table, classes=tuple(classes), labels=labels)


def _with_columns(
    table: ImageTable, classes: tuple[str, ...], index: NDArray[np.int64]
) -> ImageTable:
    """Return a table with `label_sets` with other classes; `index` (C,) has the place of each."""
    assert table.label_sets is not None
    sets = np.zeros((len(table.label_sets), len(classes)), dtype=np.bool_)
    sets[:, index] = table.label_sets
    return replace(table, classes=classes, label_sets=sets)


def check_table(table: ImageTable, name: str) -> ImageTable:
    """Return the table of a data set with its classes named as those of files.

    Args:
        table: What `Dataset.load` returned.
        name: Name of the data set, for messages.

    Raises:
        PluginError: It is no table, or its fields do not describe the same images.
        DataError: One of the names can't be a name.
    """
    if fault := _table_fault(table):
        raise PluginError(f"load of dataset {name!r} returned {fault}")
    for label in table.classes:
        if fault := name_fault(label):
            raise DataError(f"the data set's class {label!r} {fault}")
    return replace(table, classes=tuple(map(class_name, table.classes)))


def _table_fault(table: object) -> str:
    """Return what is wrong with the table of a data set; empty for nothing."""
    if not isinstance(table, ImageTable):
        return f"{type(table).__name__} instead of an ImageTable"
    labels, splits = np.asarray(table.labels), np.asarray(table.splits)
    count, distinct = len(labels), len({*table.keys})
    if (len(table.keys), distinct) != (count, count):
        return f"{len(table.keys)} keys, {distinct} of them distinct, for {count} labels"
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return f"labels {labels.shape} {labels.dtype} instead of (N,) int64"
    known = len(table.classes if table.label_sets is None else table.label_sets)
    if count and not STRANGER <= labels.min() <= labels.max() < known:
        return f"labels from {labels.min()} to {labels.max()} instead of -1 to {known - 1}"
    if splits.shape != labels.shape:
        return f"splits {splits.shape} for {count} labels"
    unknown = {*splits.tolist()} - {*get_args(SplitName)}
    return f"the split {min(unknown)!r}; known: {', '.join(get_args(SplitName))}" if unknown else ""
