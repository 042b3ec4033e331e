"""Whether the data of a run is still what the run was made with; nothing is decoded for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ssl_toolkit.data.cache.image_files import files_of
from ssl_toolkit.data.load import chosen_labels, load_table
from ssl_toolkit.data.splits.contents import compare_rows
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.data.splits.split_file import data_changed, load_split
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.runs.folder import RunFolder, check_classes

NEW_COMPARISON = "restore them, or compare into another folder (--output)"


def find_data(folder: RunFolder, data: Path | None = None) -> ImageTable:
    """The data of a run, no image decoded and nothing downloaded.

    Args:
        folder: of the run.
        data: where its images are now; None for where they were.

    Raises:
        UserError: it can't be found or read.
    """
    settings = folder.reopen(data).settings.model_copy(update={"download": False})
    return chosen_labels(load_table(settings, lazily=True), settings)[0]


def check_data(folder: RunFolder, table: ImageTable, data: Path | None = None) -> None:
    """Refuse data that a run was not made with.

    Digests come from the cache of the run's images where there is one; else the files are read.

    Args:
        folder: of the run.
        table: of `find_data`.
        data: where it was found; None for where it was.

    Raises:
        DataError: other classes, images that are gone, or others than they were.
    """
    settings = folder.read_config().settings
    own = folder.read_summary().classes
    check_classes(table.classes, own, folder.path, data or settings.data)
    stored = load_split(folder.split, table)
    if (files := files_of(table)) is not None:
        if settings.stream_buffer is not None:
            held = [stored.split.labeled, stored.split.validation, stored.split.test]
            files.cache_only(np.concatenate(held))
        files.open_existing(settings.image_size)
    stored.check(table)


def check_same_data(
    folder: RunFolder, table: ImageTable, drawn: Split | None, known: set[str]
) -> None:
    """Refuse to go on in a comparison with data that a run in it was not made with.

    Args:
        folder: of the run.
        table: the data, read for the comparison.
        drawn: the split that a new run of these settings and seed would have; None if not drawn.
        known: hashes of splits that were found to be of this data; gets that of the run.

    Raises:
        DataError: one line with how many images of which part differ.
        ModelError: the record of the run is missing or damaged.
    """
    own = folder.read_record().split
    if own in known:
        return
    stored = load_split(folder.split, table)
    stored.check(table, NEW_COMPARISON)
    if drawn is not None and (changes := compare_rows(stored.split, drawn)).description:
        raise data_changed(folder.split, changes, NEW_COMPARISON)
    known.add(own)
