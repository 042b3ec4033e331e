"""Recognize and read what ``--data`` names: folders, manifests, arrays, shards, parquet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.format import Progress
from ssl_toolkit.data.readers.file_tree import entries
from ssl_toolkit.data.readers.fit import lay_out
from ssl_toolkit.data.readers.folders import LAYOUTS, read_folder
from ssl_toolkit.data.readers.hugging_face import is_metadata, read_image_folder, read_parquet
from ssl_toolkit.data.readers.manifests import PARTS, read_manifest
from ssl_toolkit.data.readers.npz import read_npz
from ssl_toolkit.data.readers.rows import SUFFIXES
from ssl_toolkit.data.readers.table_builder import TableBuilder
from ssl_toolkit.data.readers.webdataset import compressed, is_compressed, read_shards
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path, display_text, summarize

_FOLDERS_OF_FILES = frozenset((*PARTS, "data"))  # where shards and parquet files may lie


def read_data(
    path: Path | str,
    *,
    root: Path | None = None,
    on_bad_image: Literal["error", "skip"] = "error",
    workers: int = 0,
    size: int | None = None,
    progress: Progress | None = None,
    lazily: bool = False,
    fit: Fit = "crop",
) -> ImageTable:
    """The images of a folder or file of any layout; see `folders.LAYOUTS`.

    A file is recognized by its extension. A folder without class folders that holds ``.tar`` or
    ``.parquet`` files, beside each other or in folders named as splits or ``data``, is read as
    these; one with a ``metadata.csv`` or ``metadata.jsonl`` that has labels as Hugging Face's image
    folder; any other by `folders.read_folder`.

    Args:
        path: the folder or file.
        root: what the paths of a manifest are relative to; None for its folder.
        on_bad_image: see `folders.read_folder`; an image that a manifest names and that isn't
            there is unreadable.
        workers: threads that decode.
        size: side in pixels at which they are decoded into the cache; None verifies only.
        progress: called while they are decoded.
        lazily: open no image; unreadable ones stay in the table.
        fit: see `images.fit_image`.

    Raises:
        DataError: it doesn't exist, is of no known layout, or what is in it is wrong.
    """
    top = Path(path)
    rows = TableBuilder(workers, size, progress, lazily, fit)
    suffix = top.suffix.lower()
    if top.is_dir():
        shards, tables, metadata = _files(top)
        if root is not None:
            rows.notes.append(f"--root is not used: {display_path(top)} is a folder")
        if shards and tables:
            raise DataError(
                f"{display_path(top)} has both .tar and .parquet files "
                f"({summarize([*shards, *tables])}); "
                "keep one kind"
            )
        if shards:
            classes = read_shards(list(shards.values()), top, rows)
        elif tables:
            classes = read_parquet(list(tables.values()), top, rows)
        elif metadata:
            classes = read_image_folder(list(metadata.values()), top, rows)
        else:
            return read_folder(
                top,
                on_bad_image=on_bad_image,
                workers=workers,
                size=size,
                progress=progress,
                lazily=lazily,
                fit=fit,
            )
    elif not top.exists():
        raise DataError(
            f"--data {display_path(top)} doesn't exist; give a folder that holds {LAYOUTS}"
        )
    elif suffix == ".npz":
        return lay_out(read_npz(top), fit)
    elif suffix in SUFFIXES:
        classes = read_manifest(top, root, rows)
    elif is_compressed(top):
        raise compressed([top])
    elif suffix == ".tar":
        classes = read_shards([top], top, rows)
    elif suffix == ".parquet":
        classes = read_parquet([top], top, rows)
    else:
        raise DataError(
            f"--data {display_path(top)} is a file of no known kind ({', '.join(SUFFIXES)}, .npz, "
            f".tar or .parquet are); a folder holds {LAYOUTS}"
        )
    rows.drop_unreadable(refuse=on_bad_image == "error")
    _check_filled(top, classes, rows)
    return rows.table(classes)


def _files(top: Path) -> tuple[dict[str, Path], dict[str, Path], dict[str, Path]]:
    """Shards, parquet files and metadata by key; none of the former beside class folders."""
    inside = entries(top)
    folders = [entry for entry in inside if entry.is_dir()]
    files = {display_text(entry.name): entry for entry in inside if not entry.is_dir()}
    bare = True
    for folder in folders:
        if folder.name.lower() not in _FOLDERS_OF_FILES:
            bare = False
            continue
        for entry in entries(folder):
            bare = bare and not entry.is_dir()
            files[f"{display_text(folder.name)}/{display_text(entry.name)}"] = entry

    def of(suffix: str) -> dict[str, Path]:
        return {key: file for key, file in files.items() if file.suffix.lower() == suffix and bare}

    packed = [file for file in files.values() if is_compressed(file)]
    if packed and bare:
        raise compressed(packed)
    metadata = {key: file for key, file in files.items() if is_metadata(file)}
    return of(".tar"), of(".parquet"), metadata


def _check_filled(top: Path, classes: tuple[str, ...], rows: TableBuilder) -> None:
    """Refuse classes whose images were all skipped."""
    counts = Counter(
        label
        for label, part in zip(rows.labels, rows.parts, strict=True)
        if part in ("labeled", "pool")
    )
    if empty := [name for number, name in enumerate(classes) if not counts[number]]:
        raise DataError(
            [
                f"{display_path(top)}: class {name!r} has no readable image with a label"
                for name in empty
            ]
        )
