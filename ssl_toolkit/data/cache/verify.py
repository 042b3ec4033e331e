"""What becomes of images that can't be read: all named at once, or left out with a note each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ssl_toolkit.data.cache.format import Progress
from ssl_toolkit.data.cache.image_files import files_of, with_files
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path


def verify(
    table: ImageTable,
    size: int,
    *,
    refuse: bool,
    progress: Progress | None = None,
) -> ImageTable:
    """Decode the images of a table that are files into the cache, or know them from it.

    Args:
        table: one whose images are not files is returned as it is.
        size: side in pixels.
        refuse: whether unreadable ones are an error; else they are left out.
        progress: called while they are decoded.

    Returns:
        The table without unreadable images; notes name them.

    Raises:
        DataError: `refuse`, and some can't be read; one message each.
    """
    files = files_of(table)
    if files is None:
        return table
    faults = files.open(size, progress).faults
    if not faults:
        return table
    if refuse:
        raise unreadable(files, faults)
    notes = skipped(table.keys, faults)
    good = np.delete(np.arange(len(table.keys)), sorted(faults))
    return replace(
        with_files(table, files.drop(faults)),
        keys=PackedStrings(table.keys[row] for row in good.tolist()),
        labels=table.labels[good],
        parts=table.parts[good],
        notes=(*table.notes, *notes),
    )


def unreadable(paths: Sequence[str], faults: Mapping[int, str]) -> DataError:
    """The error that names all of them; `faults` by place in `paths`."""
    messages = [
        f"can't read image {display_path(Path(paths[place]))}: {faults[place]}"
        for place in sorted(faults)
    ]
    way_out = f"replace or remove the unreadable images ({len(faults)})"
    return DataError([*messages, f"{way_out}, or leave them out: --on-bad-image skip"])


def skipped(keys: Sequence[str], faults: Mapping[int, str]) -> list[str]:
    """The notes on those that are left out; `faults` by place in `keys`."""
    notes = [f"skipped {keys[place]}: {faults[place]}" for place in sorted(faults)]
    return [*notes, f"unreadable images skipped: {len(faults)} of {len(keys)}"]
