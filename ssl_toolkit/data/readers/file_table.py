"""Image files below a folder as an `ImageTable`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ssl_toolkit.data.readers.manifests import Links
from ssl_toolkit.data.readers.table_builder import TableBuilder
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, Part
from ssl_toolkit.text import display_path

MAX_MESSAGES = 20


def file_table(
    folder: Path,
    classes: Sequence[str],
    files: Iterable[tuple[str, int, Part]],
    notes: Sequence[str] = (),
    sources: Sequence[str] = (),
) -> ImageTable:
    """Return a table of the image files of a folder; opens none of them.

    The toolkit decodes them once into its cache, reports unreadable ones, finds duplicates, and
    can stream them.

    Args:
        folder: Path to the folder.
        classes: Names of the labels 0, 1, ...
        files: For each image its path relative to the folder, which becomes its key, its label
            (-1 for none) and its part.
        notes: Lines the user should see.
        sources: Place where each image is listed, such as ``train.txt, line 3``, for messages.

    Raises:
        DataError: A file is outside the folder, by its path or by a link. The folder and the
            folders directly in it may be links themselves.
    """
    rows = TableBuilder(lazily=True)
    base = os.path.abspath(folder)
    faults: list[str] = []
    links: dict[str, Links] = {}
    for index, (key, label, part) in enumerate(files):
        source = f"{sources[index]}: " if sources else ""
        top, _, _ = key.partition("/")
        if os.path.isabs(key) or ".." in key.split("/") or "\0" in key:
            faults.append(f"{source}{key!r} is not a path below {display_path(folder)}")
            continue
        if top not in links:
            links[top] = Links(base, [top])
        if outside := links[top].outside(key):
            faults.append(
                f"{source}{key!r} leads by a link out of {display_path(folder)} to {outside}"
            )
        rows.keys.append(key)
        rows.paths.append(os.path.join(base, key))
        rows.labels.append(label)
        rows.parts.append(part)
    if faults:
        raise DataError(faults[:MAX_MESSAGES])
    rows.notes += notes
    return rows.table(tuple(classes))
