"""Where the files of a named data set are, and what to say when they are not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ssl_toolkit.errors import DataError
from ssl_toolkit.text import display_path

ROOT_VARIABLE = "SSL_TOOLKIT_DATA"
"""Environment variable with the path to the default folder of the data sets."""


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
    except (OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{name} in {display_path(folder)} is incomplete or corrupt, or can't be downloaded "
            f"({reason}); remove its files there and use --download, or give another folder with "
            "--root DIR"
        ) from None
