"""Read lists of images with several classes per image, for ``--task multilabel``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.readers.image_files import TableBuilder
from ssl_toolkit.data.readers.manifests import fill_from_files
from ssl_toolkit.data.readers.rows import SEPARATOR, Record, RowErrors, records
from ssl_toolkit.errors import DataError
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path

LabelSets = NDArray[np.bool_]
"""(K, C); see `ImageTable.label_sets`."""


def read_label_sets(
    path: Path, root: Path | None, rows: TableBuilder
) -> tuple[tuple[str, ...], LabelSets]:
    """Add the images of a manifest to a table, as `manifests.read_manifest`.

    A label is a list of classes: separated by ``|`` in a table or a list, or a JSON list; a single
    ``|`` or an empty list is that of an image with none of the classes. An image with an empty
    label has no label.

    Args:
        path: The file.
        root: Folder that paths are relative to; None for the manifest's folder.
        rows: Table to add the images to.

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
            names = frozenset(class_name(part.strip()) for part in label.split(SEPARATOR)) - {""}
            found.append((line, names))
            yield line, key, "labeled" if label else "", split

    fill_from_files(labeled(), path.parent if root is None else root, bad, rows, 1)
    known = [
        names
        for (_, names), label, part in zip(found, rows.labels, rows.parts, strict=True)
        if label >= 0 and part in ("labeled", "pool")
    ]
    classes = tuple(sorted(frozenset[str]().union(*known)))
    if len(classes) < 2:
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
    # Sorted, so that the numbers of sets, and with them the hash of a split, don't depend on the
    # order of the images.
    order = sorted(sets, key=sorted)
    number = {sets[names]: rank for rank, names in enumerate(order)}
    rows.labels[:] = [number.get(label, -1) for label in rows.labels]
    array = np.array([[name in names for name in classes] for names in order], dtype=np.bool_)
    return classes, array
