"""Load the image table that a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ssl_toolkit import registry
from ssl_toolkit.config import default_plugins
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.data.cache.image_files import files_of, verify
from ssl_toolkit.data.class_names import class_name, name_fault
from ssl_toolkit.data.readers.detect import read_data
from ssl_toolkit.data.readers.fit import lay_out
from ssl_toolkit.data.sets.local_files import default_root
from ssl_toolkit.data.sets.torchvision import PREFIX, TorchvisionSet
from ssl_toolkit.data.splits.draw import Rows
from ssl_toolkit.data.splits.labels_file import choose_labeled, choose_rows
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.interfaces import Dataset, ImageTable
from ssl_toolkit.text import summarize


def load_table(
    settings: Settings,
    progress: Callable[[int, int], None] | None = None,
    *,
    lazily: bool = False,
) -> ImageTable:
    """The images that the settings name, before a split is drawn.

    Args:
        settings: with ``image_size``, images that are files are decoded into the cache; with
            ``stream_buffer`` none is opened.
        progress: called while images are decoded.
        lazily: open no image that is a file; unreadable ones stay in the table.

    Raises:
        DataError: they can't be found or read, or ``classes`` are not those of the data.
        ConfigError: ``stream_buffer`` is given and they can't be streamed.
    """
    streamed = settings.stream_buffer is not None
    if settings.data is not None:
        table = read_data(
            Path(settings.data),
            root=None if settings.root is None else Path(settings.root),
            on_bad_image=settings.on_bad_image,
            workers=settings.workers,
            size=settings.image_size,
            progress=progress,
            lazily=streamed or lazily,
            fit=settings.fit,
        )
    else:
        dataset = named_dataset(settings.dataset)
        root = None if settings.root is None else Path(settings.root)
        table = lay_out(
            _named(dataset.load(root, download=settings.download)), settings.fit, settings.workers
        )
        if settings.image_size is not None and not streamed and not lazily:
            table = verify(
                table,
                settings.image_size,
                refuse=settings.on_bad_image == "error",
                progress=progress,
            )
    files = files_of(table)
    if streamed and (files is None or files.in_parquet):
        raise ConfigError(
            f"--stream-buffer: the images of {settings.data or settings.dataset} are neither "
            "shards nor files of their own; leave it out"
        )
    return table if settings.classes is None else _reorder(table, settings.classes)


def chosen_labels(table: ImageTable, settings: Settings) -> tuple[ImageTable, Rows | None]:
    """The table and the rows that ``labels`` names; None when it is not given.

    Raises:
        DataError: as `choose_labeled`.
    """
    if settings.labels is None:
        return table, None
    folder = default_root() if settings.root is None else Path(settings.root)
    if settings.data is None:
        rows = named_dataset(settings.dataset).labeled_rows(settings.labels, table, folder)
        if rows is not None:
            return choose_rows(table, rows), rows
    elif settings.root is None:
        data = Path(settings.data)
        folder = data if data.is_dir() else data.parent
    return choose_labeled(table, settings.labels, folder)


def named_dataset(name: str | None) -> Dataset:
    """Return the data set of a registered name, or of torchvision's; None for the default one.

    Raises:
        PluginError: It is unknown or broken.
    """
    name = name or default_plugins.DATASET
    if name.startswith(PREFIX):
        return TorchvisionSet(name)
    made: Dataset = registry.load("datasets", name)()
    return made


def _reorder(table: ImageTable, classes: list[str]) -> ImageTable:
    """The table with its classes in the order given."""
    classes = [*map(class_name, classes)]
    missing = sorted(set(table.classes) - set(classes))
    foreign = sorted(set(classes) - set(table.classes))
    if missing or foreign or len(classes) != len(table.classes):
        raise DataError(
            f"classes: the data has {summarize(table.classes)}; the list given lacks "
            f"{summarize(missing) or 'none'} and adds {summarize(foreign) or 'none'}"
        )
    place = np.array([classes.index(name) for name in table.classes], dtype=np.int64)
    labels = np.where(table.labels >= 0, place[table.labels], -1).astype(np.int64)
    return replace(table, classes=tuple(classes), labels=labels)


def _named(table: ImageTable) -> ImageTable:
    """The table of a data set with its classes named as those of files are.

    Raises:
        DataError: one of the names can't be a name.
    """
    for name in table.classes:
        if fault := name_fault(name):
            raise DataError(f"the data set's class {name!r} {fault}")
    return replace(table, classes=tuple(map(class_name, table.classes)))
