"""Files of named data sets: their folder, their table, and errors about them."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ssl_toolkit.data.readers.image_files import TableBuilder
from ssl_toolkit.data.readers.manifests import Links
from ssl_toolkit.data.readers.rows import MOST_FAULTS
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, SplitName
from ssl_toolkit.text import display_path

ROOT_VARIABLE = "SSL_TOOLKIT_DATA"
"""Environment variable with the path to the default folder of the data sets."""

_FAULTS = (OSError, RuntimeError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


def default_root() -> Path:
    """Return the folder of the data sets without ``--root``."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named or "~/.cache/ssl-toolkit/datasets").expanduser()


def require_files(root: Path | None, name: str, files: Sequence[str], *, download: bool) -> Path:
    """Return the folder that holds the files of a data set.

    Args:
        root: As for `Dataset.load`.
        name: Name of the data set, for the message.
        files: Paths in the folder that must exist.
        download: True if missing files are going to be downloaded.

    Raises:
        DataError: Some are missing, and may not be downloaded.
    """
    folder = default_root() if root is None else root
    missing = [item for item in files if not (folder / item).exists()]
    if missing and not download:
        raise DataError(
            f"{name} is not in {display_path(folder)} ({', '.join(missing)} missing); give its "
            "folder with --root DIR, or fetch it with --download"
        )
    return folder


@contextlib.contextmanager
def wrap_dataset_errors(name: str, folder: Path) -> Iterator[None]:
    """Turn the exceptions of a reader for missing, corrupt or unreachable files into one line.

    Args:
        name: Name of the data set.
        folder: Folder of its files.

    Raises:
        DataError: The block raised an exception that such files cause.
    """
    try:
        yield
    except _FAULTS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{name} in {display_path(folder)} is incomplete or corrupt, or can't be downloaded "
            f"({reason}); remove its files there and use --download, or give another folder with "
            "--root DIR"
        ) from None


def file_table(
    folder: Path,
    classes: Sequence[str],
    files: Iterable[tuple[str, int, SplitName]],
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
            (-1 for none) and its split.
        notes: Lines the user should see.
        sources: Place where each image is listed, such as ``train.txt, line 3``, for messages.

    Raises:
        DataError: A file is outside the folder, by its path or by a link. The folder and the
            folders directly in it may be links themselves.
    """
    rows = TableBuilder()
    base = os.path.abspath(folder)
    faults: list[str] = []
    links: dict[str, Links] = {}
    for index, (key, label, split) in enumerate(files):
        source = f"{sources[index]}: " if sources else ""
        top, _, _ = key.partition("/")
        if os.path.isabs(key) or ".." in key.split("/") or "\0" in key:
            faults.append(f"{source}{key!r} is not a path below {display_path(folder)}")
            continue
        if top not in links:
            links[top] = Links(base, [top])
        if fault := links[top].fault(key):
            faults.append(f"{source}{key!r} {fault}")
        rows.keys.append(key)
        rows.paths.append(os.path.join(base, key))
        rows.labels.append(label)
        rows.splits.append(split)
    if faults:
        raise DataError(faults[:MOST_FAULTS])
    rows.notes += notes
    return rows.table(tuple(classes))
