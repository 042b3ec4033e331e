"""Images as Hugging Face's ``datasets`` stores them: ``imagefolder`` metadata, and parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ssl_toolkit.data.class_names import class_of
from ssl_toolkit.data.images.archives import parquet_images, parquet_path
from ssl_toolkit.data.images.kinds import head_of, named_kind
from ssl_toolkit.data.label_values import label_text
from ssl_toolkit.data.readers.image_files import TableBuilder
from ssl_toolkit.data.readers.manifests import fill, fill_from_files, key_and_split, part_of
from ssl_toolkit.data.readers.rows import LABEL_LENGTH, Record, RowErrors, records
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import file_stamp
from ssl_toolkit.text import display_path, display_text

METADATA = ("metadata.csv", "metadata.jsonl")
"""Names of files that list the images of their folder under ``file_name``."""

_LABELS = ("label", "labels", "fine_label")


def is_metadata(path: Path) -> bool:
    """Return True if a file lists images and labels, by its name and first line."""
    if path.name.lower() not in METADATA:
        return False
    with path.open("rb") as file:
        first = file.readline(LABEL_LENGTH)
    return b"file_name" in first and b"label" in first


def read_image_folder(metadata: Sequence[Path], top: Path, rows: TableBuilder) -> tuple[str, ...]:
    """Add the images that ``metadata.csv`` or ``metadata.jsonl`` files name.

    A file in ``train/``, ``validation/`` or ``test/`` says the split; in the data folder itself
    the first folder of ``file_name``, or a column ``split``, does. The label is under
    ``label`` or ``labels``.

    Args:
        metadata: The files, in `top` or in folders of it.
        top: What keys are relative to, and what no path leaves.
        rows: Takes the images.

    Returns:
        The classes, sorted as text.

    Raises:
        DataError: As `manifests.read_manifest`.
    """
    bad = RowErrors(display_path(top))

    def read(path: Path) -> Iterator[Record]:
        home = "" if path.parent == top else f"{display_text(path.parent.name)}/"
        for line, name, label, split in records(path, bad, "file_name", rows.notes):
            key = home + name
            yield line, key, label, split or (part_of(key) if "/" in key else "")

    return fill_from_files(_records(metadata, read, top, bad), top, bad, rows)


def read_parquet(files: Sequence[Path], top: Path, rows: TableBuilder) -> tuple[str, ...]:
    """Add the images of parquet files, without reading any.

    A file whose name, or whose folder's, starts with a split's (``train-00000-of-00001.parquet``)
    belongs to it. The images are the column whose cells hold ``bytes`` and ``path``; the bytes
    must be there. The label is the column ``label``, ``labels`` or ``fine_label``, else one that
    the schema calls a ``ClassLabel``; its names are the schema's.

    Args:
        files: The files.
        top: What keys are relative to, and what no path leaves.
        rows: Takes the images.

    Returns:
        The classes, sorted as text.

    Raises:
        DataError: Pyarrow isn't installed, a file is damaged or lacks a column of images, or as
            `manifests.fill`.
    """
    bad = RowErrors(display_path(top), "row")
    read = partial(_rows, top=top, bad=bad, rows=rows)
    return fill(_records(files, read, top, bad), os.path.abspath(top), bad, rows)


def _records(
    files: Sequence[Path], read: Callable[[Path], Iterable[Record]], top: Path, bad: RowErrors
) -> Iterator[Record]:
    """Yield the records of each file, whose name `bad` has meanwhile."""
    for path in files:
        bad.where = display_path(path)
        yield from read(path)
    bad.where = display_path(files[0] if len(files) == 1 else top)


def _rows(path: Path, top: Path, bad: RowErrors, rows: TableBuilder) -> Iterator[Record]:
    try:
        source = parquet_images(os.fspath(path), file_stamp(path))
        column, names = _label_column(source.schema)
        for name in filter(None, (source.image, column)):
            source.check(name)
    except OSError as error:
        reason = named_kind(head_of(path)) or error.strerror or str(error)
        raise DataError(f"can't read {bad.where}: {reason}") from None
    if not source.image:
        raise DataError(
            f"{bad.where} has no column of images, a struct of bytes and path; its columns are "
            f"{', '.join(source.schema.names)}"
        )
    where, split = key_and_split(path, top)
    for row, value in enumerate(source.cells(column) if column else [None] * source.count):
        if isinstance(value, str) and len(value) > LABEL_LENGTH:
            raise DataError(
                f"{bad.where}, row {row}: the label has {len(value):,} characters; it is a number "
                "or a name"
            )
        label = _named(value, names)
        if label is None:
            bad.add(row, f"the label {value!r} is none of the schema's")
            continue
        rows.paths.append(parquet_path(path, row))
        yield row, f"{where}/{row}", label, split


def _named(value: Any, names: Sequence[str]) -> str | None:
    if names and isinstance(value, int):
        if value == -1:
            return ""
        return names[value] if 0 <= value < len(names) else None
    label = label_text(value)
    return label if label is None else class_of(label)


def _label_column(schema: Any) -> tuple[str, list[str]]:
    """Return the name of the column of labels, empty for none, and the names of its numbers."""
    metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(metadata).get("info", {}).get("features", {})
        named = {
            name: [str(one) for one in feature["names"]]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, AttributeError, KeyError, TypeError):
        named = {}
    usual = [name for name in _LABELS if name in schema.names]
    column = next((name for name in usual if name in named), next(iter([*usual, *named]), ""))
    return column, named.get(column, [])
