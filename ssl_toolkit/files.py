"""Files that are whole or not there at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its final name, sync it, then rename it into place.

    Args:
        path: the final name; its folder is made when missing.
        write: called once with the open binary file.

    Raises:
        OSError: the disk is full, the folder is read-only and so on; whatever stood under the
            final name before is untouched and nothing half-written is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix (not only the stem) is kept: some writers choose a format by it.
    beside = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all (see `write_atomically` for errors)."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), whole or not at all.

    Raises:
        ValueError: a number is not finite.
        OSError: as `write_atomically`.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system can sync a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
