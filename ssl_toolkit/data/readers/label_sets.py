"""Read lists of images with several classes per image, for ``--task multilabel``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.readers.image_files import TableBuilder
from ssl_toolkit.data.readers.manifests import fill_from_files
from ssl_toolkit.data.readers.rows import SEPARATOR, Record, RowErrors, records
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path

LabelSets = NDArray[np.bool_]
"""(K, C); see `ImageTable.label_sets`."""


def classes_in(label: str) -> frozenset[str]:
    """Return the classes of a label such as ``cat|dog``; none for a single ``|``."""
    return frozenset(class_name(part.strip()) for part in label.split(SEPARATOR)) - {""}


def label_text(table: ImageTable, label: int) -> str | None:
    """Return the class or classes of a label of a table as text; None for no label."""
    if label < 0:
        return None
    if table.label_sets is None:
        return table.classes[label]
    return SEPARATOR.join(compress(table.classes, table.label_sets[label])) or SEPARATOR


def ordered_sets(
    sets: Collection[frozenset[str]], classes: Sequence[str]
) -> tuple[LabelSets, NDArray[np.int64]]:
    """Return distinct sets of classes in the order of their sorted names, and their numbers in it.

    The numbers of sets, and with them the hash of a split, then don't depend on the order of the
    images.

    Args:
        sets: K sets.
        classes: C names.

    Returns:
        (K, C) sets, and (K,) the new number of each given one.
    """
    order = sorted(sets, key=sorted)
    rank = {names: number for number, names in enumerate(order)}
    array = [[name in names for name in classes] for names in order]
    numbers = np.array([rank[names] for names in sets], dtype=np.int64)
    return np.array(array, dtype=np.bool_).reshape(len(order), len(classes)), numbers


def read_label_sets(
    path: Path, root: Path | None, rows: TableBuilder, least_classes: int = 2
) -> tuple[tuple[str, ...], LabelSets]:
    """Add the images of a manifest to a table, as `manifests.read_manifest`.

    A label is a list of classes: separated by ``|`` in a table or a list, or a JSON list; a single
    ``|`` or an empty list is that of an image with none of the classes. An image with an empty
    label has no label.

    Args:
        path: The file.
        root: Folder that paths are relative to; None for the manifest's folder.
        rows: Table to add the images to.
        least_classes: Number of classes with labels that are needed.

    Returns:
        The classes, sorted as text: those of labeled and pool images; and the distinct sets of
        them, which the labels of the table are an index into.

    Raises:
        DataError: As `manifests.read_manifest`.
    """
    bad = RowErrors(display_path(path))
    found: list[tuple[int, frozenset[str]]] = []

    def labeled() -> Iterator[Record]:
        for line, key, label, split in records(path, bad, "path", rows.notes, lists=True):
            found.append((line, classes_in(label)))
            yield line, key, "labeled" if label else "", split

    fill_from_files(
        labeled(), path.parent if root is None else root, bad, rows, min(1, least_classes)
    )
    known = [
        names
        for (_, names), label, part in zip(found, rows.labels, rows.splits, strict=True)
        if label >= 0 and part in ("labeled", "pool")
    ]
    classes = tuple(sorted(frozenset[str]().union(*known)))
    if len(classes) < least_classes:
        only = f" ({classes[0]})" if classes else ""
        raise DataError(
            f"{bad.where} has labeled images of {len(classes)} classes{only}; at least two are "
            "needed"
        )
    sets: dict[frozenset[str], int] = {}
    for row, (line, names) in enumerate(found):
        if rows.labels[row] < 0:
            continue
        if unknown := sorted(names.difference(classes)):
            hint = did_you_mean(unknown[0], classes)
            bad.add(line, f"class {unknown[0]!r} has no labeled image{hint}")
        rows.labels[row] = sets.setdefault(names, len(sets))
    bad.refuse()
    array, numbers = ordered_sets(sets, classes)
    rows.labels[:] = [int(numbers[label]) if label >= 0 else -1 for label in rows.labels]
    return classes, array
