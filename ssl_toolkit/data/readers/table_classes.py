"""Names and order of the classes of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import Settings
from ssl_toolkit.data.class_names import class_name, name_fault
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
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


def check_names(table: ImageTable) -> ImageTable:
    """Return the table of a data set with its classes named as those of files.

    Raises:
        DataError: One of the names can't be a name.
    """
    for name in table.classes:
        if fault := name_fault(name):
            raise DataError(f"the data set's class {name!r} {fault}")
    return replace(table, classes=tuple(map(class_name, table.classes)))
