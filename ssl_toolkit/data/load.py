"""Load the image table that a configuration names."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from ssl_toolkit import registry
from ssl_toolkit.config import defaults
from ssl_toolkit.config.images import RGB8, Fit, PixelFormat, Size, size_text
from ssl_toolkit.config.sections import StrangerSettings
from ssl_toolkit.config.settings import OnBadImage, Settings
from ssl_toolkit.data.cache import Progress
from ssl_toolkit.data.images.kinds import kind_of_name
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.data.readers.arrays import FittedRead
from ssl_toolkit.data.readers.folders import LAYOUTS, entries, read_folder, read_pool
from ssl_toolkit.data.readers.form import format_notes, lay_out
from ssl_toolkit.data.readers.hugging_face import is_metadata, read_image_folder, read_parquet
from ssl_toolkit.data.readers.image_files import (
    TableBuilder,
    files_of,
    skipped,
    unreadable,
    unused_notes,
    with_files,
)
from ssl_toolkit.data.readers.label_sets import read_label_sets
from ssl_toolkit.data.readers.manifests import PARTS, read_manifest
from ssl_toolkit.data.readers.npz import array_format, read_npz
from ssl_toolkit.data.readers.rows import SEPARATOR, SUFFIXES
from ssl_toolkit.data.readers.table_classes import add_classes, check_table, reorder_classes
from ssl_toolkit.data.readers.webdataset import compressed, is_compressed, read_shards
from ssl_toolkit.data.sets.local_files import default_root
from ssl_toolkit.data.splits.draw import Rows
from ssl_toolkit.data.splits.labels_file import choose_labeled, choose_rows, classes_of
from ssl_toolkit.data.splits.strangers import with_strangers
from ssl_toolkit.errors import ConfigError, DataError, PluginError
from ssl_toolkit.interfaces import Dataset, DatasetDefaults, ImageTable, SplitName
from ssl_toolkit.text import display_path, summarize

_FOLDERS_OF_FILES = frozenset((*PARTS, "data"))  # that may hold shards and parquet files


def load_table(
    settings: Settings, progress: Progress | None = None, *, lazily: bool = False
) -> ImageTable:
    """Return the images that the settings name, before a split is drawn.

    Args:
        settings: With ``image_size``, image files are decoded into the cache; with
            ``stream_buffer`` none is opened.
        progress: Called while images are decoded.
        lazily: Open no image file; unreadable ones stay in the table.

    Raises:
        DataError: Images are not found or unreadable, or ``classes`` are not those of the data.
        ConfigError: ``stream_buffer`` is set and they can't be streamed.
    """
    root = None if settings.root is None else Path(settings.root)
    streamed = settings.stream_buffer is not None
    size = None if streamed or lazily else settings.image_size
    pixels = pixel_format(settings)
    if settings.data is not None:
        table = read_data(
            Path(settings.data), root=root, size=size, fit=settings.fit, pixels=pixels,
            workers=settings.workers, on_bad_image=settings.on_bad_image, progress=progress,
            unlabeled=settings.labels is not None, multilabel=settings.task == "multilabel",
        )  # fmt: skip
        if settings.labels is not None and len(table.classes) < 2:
            several = settings.task == "multilabel"
            found = {*table.classes, *classes_of(Path(settings.labels), several=several)}
            names = settings.classes or sorted(found)
            table = add_classes(table, names, settings.labels)
    else:
        name = settings.dataset or defaults.DATASET
        table = check_table(named_dataset(name).load(root, download=settings.download), name)
        table = lay_out(table, settings.fit, settings.workers, pixels)
        table = verify(table, size, on_bad_image=settings.on_bad_image, progress=progress)
    if (table.label_sets is not None) != (settings.task == "multilabel"):
        has, task = ("several classes", "multilabel")
        if table.label_sets is None:
            has, task = ("one class", "multiclass")
        raise DataError(f"the images of {settings.dataset} have {has} each: give --task {task}")
    files = files_of(table)
    if files is not None and size is not None and settings.data is not None:
        table = replace(table, notes=(*table.notes, *format_notes(files, size)))
    if streamed and (files is None or files.in_parquet):
        raise ConfigError(
            f"--stream-buffer: the images of {settings.data or settings.dataset} are neither "
            "shards nor files of their own; leave it out"
        )
    if settings.classes is not None:
        table = reorder_classes(table, settings)
    if settings.strangers.data is None:
        return table
    if streamed:
        raise ConfigError("--stream-buffer and --strangers can't be used together")
    return _add_candidates(table, settings, settings.strangers.data, progress, lazily=lazily)


def _add_candidates(
    table: ImageTable, settings: Settings, name: str, progress: Progress | None, *, lazily: bool
) -> ImageTable:
    """Return the table with all images of ``strangers.data``."""
    path = Path(name).expanduser()
    if not path.exists() and not registry.has("datasets", name.partition(":")[0]):
        raise DataError(
            f"--strangers {name}: not found; give a path to images or the name of a data set"
            f"{registry.did_you_mean(name, [e.name for e in registry.entries('datasets')])}"
        )
    if path.exists():
        size = None if lazily else settings.image_size
        strangers = read_data(
            path, size=size, fit=settings.fit, pixels=pixel_format(settings),
            workers=settings.workers, on_bad_image=settings.on_bad_image,
            progress=progress, unlabeled=True,
        )  # fmt: skip
    else:
        of_set: dict[str, object] = dict.fromkeys(("data", "classes", "labels"))
        of_set |= {"dataset": name, "strangers": StrangerSettings()}
        strangers = load_table(settings.model_copy(update=of_set), progress, lazily=lazily)
    return with_strangers(table, strangers, name)


def pixel_format(settings: Settings) -> PixelFormat:
    """Return channels and bits of the images, from the settings, else by the data."""
    if settings.channels is not None and settings.bits is not None:
        return PixelFormat(settings.channels, settings.bits)
    form = RGB8
    if settings.data is None:
        form = named_dataset(settings.dataset).defaults.pixels
    elif is_array_file(path := Path(settings.data)):
        form = array_format(path)
    return PixelFormat(settings.channels or form.channels, settings.bits or form.bits)


def is_array_file(path: Path) -> bool:
    """Return True if the data is an ``.npz`` file."""
    return path.suffix.lower() == ".npz" and path.is_file()


def load_dataset(
    name: str, root: str | os.PathLike[str] | None = None, *, download: bool = False
) -> ImageTable:
    """Return the images of a named data set, such as for a data set that selects from them.

    Args:
        name: Name of the data set, as for ``--dataset``.
        root: Path to its files; None for the default folder.
        download: True to download missing files.

    Raises:
        PluginError: The data set is unknown or broken.
        DataError: Its files are not found or are corrupt.
    """
    folder = None if root is None else Path(root)
    return check_table(named_dataset(name).load(folder, download=download), name)


def read_data(
    path: Path,
    *,
    root: Path | None = None,
    size: Size | None = None,
    fit: Fit = "crop",
    pixels: PixelFormat | None = None,
    workers: int = 0,
    on_bad_image: OnBadImage = "error",
    unlabeled: bool = False,
    multilabel: bool = False,
    progress: Progress | None = None,
) -> ImageTable:
    """Return the images of a folder or file of any layout; see `folders.LAYOUTS`.

    A file is recognized by its extension. A folder without class folders that holds ``.tar`` or
    ``.parquet`` files, beside each other or in folders named as splits or ``data``, is read as
    these; one with a ``metadata.csv`` or ``metadata.jsonl`` that has labels as Hugging Face's image
    folder; any other by `folders.read_folder`.

    Args:
        path: Path to the folder or file.
        root: What the paths of a manifest are relative to; None for its folder.
        size: Size in pixels at which images are decoded into the cache; None opens none, and
            unreadable ones stay in the table.
        fit: See `fit_image`.
        pixels: Channels and bits; None for those of the data.
        workers: Threads that decode.
        on_bad_image: Refuse unreadable images, or ``skip`` them, each with a note.
        unlabeled: Accept data without classes, such as a folder of images.
        multilabel: Read any number of classes per image, which manifests and arrays can have.
        progress: Called while images are decoded.

    Raises:
        DataError: The path doesn't exist, its layout is unknown, or its content is wrong.
    """
    rows, least_classes = TableBuilder(), 0 if unlabeled else 2
    if is_array_file(path):
        pixels = pixels or array_format(path)
        table = read_npz(path, least_classes, pixels.bits, multilabel=multilabel)
    elif multilabel and path.suffix.lower() in SUFFIXES and not path.is_dir():
        names, label_sets = read_label_sets(path, root, rows, least_classes)
        table = replace(rows.table(names), label_sets=label_sets)
    elif multilabel:
        table = _without_labels(path, root, rows, unlabeled=unlabeled)
    else:
        table = rows.table(_add_images(path, root, rows, least_classes))
    if unlabeled and not len(table.keys):
        others = unused_notes(filter(kind_of_name, rows.unused), "")
        raise DataError("; ".join([f"{display_path(path)} has no images", *others]))
    table = lay_out(table, fit, workers, pixels or RGB8)
    table = verify(table, size, on_bad_image=on_bad_image, progress=progress)
    counts = {part: int((table.splits == part).sum()) for part in get_args(SplitName)}
    listed = ", ".join(f"{part} {count}" for part, count in counts.items() if count)
    kind = "images" if table.features is None else "features"
    summary = f"{kind}: {listed}"
    if table.classes:
        summary = f"{len(table.classes)} classes ({summarize(table.classes)}); {summary}"
    return replace(table, notes=(summary, *table.notes))


def _without_labels(
    path: Path, root: Path | None, rows: TableBuilder, *, unlabeled: bool
) -> ImageTable:
    """Return images of a layout whose labels are one class, for a labels file with several."""
    if not unlabeled or _add_images(path, root, rows, 0):
        raise DataError(
            f"--task multilabel: {display_path(path)} gives one class per image; give a manifest "
            f"({', '.join(SUFFIXES)}) with labels such as cat{SEPARATOR}dog, or JSON lists; an "
            ".npz with labels (N, C); or images without labels and --labels FILE"
        )
    return replace(rows.table(()), label_sets=np.zeros((0, 0), dtype=np.bool_))


def _add_images(
    top: Path, root: Path | None, rows: TableBuilder, least_classes: int
) -> tuple[str, ...]:
    """Add the images of a path of any layout but arrays; return the classes."""
    suffix = top.suffix.lower()
    if top.is_dir():
        if root is not None:
            rows.notes.append(f"--root is not used: {display_path(top)} is a folder")
        shards, tables, metadata = _packed_files(top)
        if shards and tables:
            names = summarize([display_path(file.relative_to(top)) for file in shards + tables])
            raise DataError(
                f"{display_path(top)} has both .tar and .parquet files ({names}); keep one kind"
            )
        if shards:
            return read_shards(shards, top, rows)
        if tables:
            return read_parquet(tables, top, rows)
        if metadata:
            return read_image_folder(metadata, top, rows)
        if least_classes == 0 and (classes := read_pool(top, rows)) is not None:
            return classes
        return read_folder(top, rows, unlabeled=least_classes == 0)
    if not top.exists():
        raise DataError(
            f"--data {display_path(top)} doesn't exist; give a folder that holds {LAYOUTS}"
        )
    if suffix in SUFFIXES:
        return read_manifest(top, root, rows, least_classes)
    if is_compressed(top):
        raise compressed([top])
    if suffix == ".tar":
        return read_shards([top], top, rows)
    if suffix == ".parquet":
        return read_parquet([top], top, rows)
    raise DataError(
        f"--data {display_path(top)} is a file of no known kind ({', '.join(SUFFIXES)}, .npz, "
        f".tar or .parquet are); a folder holds {LAYOUTS}"
    )


def _packed_files(top: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Return shards, parquet files and metadata; beside class folders only the latter."""
    items = entries(top)
    folders = [item for item in items if item.is_dir()]
    splits = [folder for folder in folders if folder.name.lower() in _FOLDERS_OF_FILES]
    items += [item for folder in splits for item in entries(folder)]
    files = [item for item in items if not item.is_dir()]
    metadata = [file for file in files if is_metadata(file)]
    if len(files) + len(splits) < len(items):  # any other folder is a class
        return [], [], metadata
    if compressed_files := [file for file in files if is_compressed(file)]:
        raise compressed(compressed_files)
    shards = [file for file in files if file.suffix.lower() == ".tar"]
    return shards, [file for file in files if file.suffix.lower() == ".parquet"], metadata


def verify(
    table: ImageTable,
    size: Size | None,
    *,
    on_bad_image: OnBadImage = "error",
    progress: Progress | None = None,
) -> ImageTable:
    """Decode the image files of a table, unless they are in the cache.

    Args:
        table: Images; returned unchanged if they are not files.
        size: Size in pixels; None decodes none.
        on_bad_image: As for `read_data`.
        progress: Called while images are decoded.

    Returns:
        The table without unreadable images; notes name them.

    Raises:
        DataError: Some images can't be read, one message each; or no labeled one of a class can.
    """
    files = files_of(table)
    if isinstance(size, tuple) and files is None and not isinstance(table.read, FittedRead):
        what = "holds features" if table.features is not None else "makes its images square itself"
        raise DataError(f"--image-size {size_text(size)}: the data set {what}; leave it out")
    if size is None or files is None or not (faults := files.open(size, progress)):
        return table
    if on_bad_image == "error":
        raise unreadable(files, faults)
    good = np.delete(np.arange(len(files)), sorted(faults))
    labeled = np.isin(table.splits, ("labeled", "pool")) & (table.labels >= 0)
    before, left = map(table.class_counts, (np.flatnonzero(labeled), good[labeled[good]]))
    if empty := np.flatnonzero((before > 0) & (left == 0)).tolist():
        messages = []
        for label in empty:
            row = next(row for row in sorted(faults) if labeled[row] and table.has(row, label))
            messages.append(
                f"class {table.classes[label]!r} has no readable image with a label, but "
                f"{before[label]} unreadable ones, the first {table.keys[row]}: {faults[row]}"
            )
        raise DataError(messages)
    return replace(
        with_files(table, files.drop(faults)),
        keys=PackedStrings(table.keys[row] for row in good.tolist()),
        labels=table.labels[good],
        splits=table.splits[good],
        notes=(*table.notes, *skipped(table.keys, faults)),
    )


def chosen_labels(table: ImageTable, settings: Settings) -> tuple[ImageTable, Rows | None]:
    """Return the table and the rows that ``labels`` names; None without ``labels``.

    Raises:
        DataError: As `choose_labeled`.
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
    """Return the data set of a name, ``prefix:rest`` by `Dataset.from_name`; None for the default.

    Raises:
        PluginError: It is unknown or broken.
    """
    name = name or defaults.DATASET
    prefix, _, rest = name.partition(":")
    dataset: Dataset
    if registry.has("datasets", prefix) and not registry.has("datasets", name):
        dataset = registry.load("datasets", prefix).from_name(rest)
    else:
        dataset = registry.load("datasets", name)()
    if not isinstance(dataset.defaults, DatasetDefaults):
        kind = type(dataset.defaults).__name__
        raise PluginError(f"dataset {name!r}: defaults is a {kind}, not DatasetDefaults(...)")
    return dataset
