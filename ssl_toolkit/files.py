"""Write files whole or not at all, and check formats and output paths."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ssl_toolkit.errors import ConfigError, ModelError, UserError
from ssl_toolkit.text import display_path

_LEAST_PACKED, _MOST_PACKED = 256 * 2**20, 50
"""A larger part of an archive with a higher compression ratio was not written by the toolkit."""


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], *, before: Callable[[], object] | None = None
) -> None:
    """Write a file beside its final name, sync it, then rename it into place.

    Args:
        path: the final name; its folder is made when missing.
        write: called once with the open binary file.
        before: called when the new file is complete and synced, before it is renamed.

    Raises:
        OSError: the disk is full, the folder is read-only and so on; it names the final name.
            The previous file is untouched and no partial file remains.
    """
    # The suffix (not only the stem) is kept: some writers choose a format by it.
    beside = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    with naming(path, beside):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if before is not None:
                before()
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        _sync_folder(path.parent)


def file_stamp(path: str | os.PathLike[str]) -> str:
    """Return the inode, length and times of change of a file: others after it was replaced.

    Files that are swapped may have the same length and modification time, which programs can set.
    A copy has another stamp, as has a file of other permissions.

    Raises:
        OSError: the file is not found or its folder not readable.
    """
    status = os.stat(path)
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def at_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` expanded, unless a file or folder has this very name."""
    path = Path(path)
    return path if str(path)[:1] != "~" or path.exists() else path.expanduser()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all (see `write_atomically` for errors)."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all (see `write_atomically` for errors)."""
    write_atomically(path, lambda file: file.write(content))


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), whole or not at all.

    Raises:
        ValueError: a number is not finite.
        OSError: as `write_atomically`.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def check_format(
    path: Path, found: object, known: int, error: type[UserError] = ModelError
) -> None:
    """Refuse a file with an unknown format number.

    Args:
        path: the file.
        found: its format number, or text of it; None for none.
        known: the number that this version writes.
        error: the class to raise.

    Raises:
        UserError: names the file, its format and, for a file of a run, the version that wrote it.
    """
    if str(found) == str(known):
        return
    name = display_path(path)
    if found is None:
        raise error(f"{name}: has no format number; this version of ssl-toolkit reads {known}")
    writer = "the version that wrote the file"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        record = json.loads(path.with_name("record.json").read_text(encoding="utf-8"))
        writer = f"ssl-toolkit {record['versions']['ssl-toolkit']}, which wrote the file"
    raise error(
        f"{name}: unknown format {found!r}: this version of ssl-toolkit reads format {known}; use "
        f"{writer}, or create it again"
    )


def append_line(path: Path, line: str) -> None:
    """Append a line of UTF-8 text, whole or not at all; it is flushed, not synced.

    Raises:
        OSError: the disk is full or the file can't be written; names the file, which then has
            the length that it had.
    """
    with naming(path), path.open("ab", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        content = memoryview((line + "\n").encode("utf-8", "backslashreplace"))
        try:
            while content:
                content = content[file.write(content) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(length)
            raise


def sync(path: Path) -> None:
    """Sync a file to the disk, if it exists."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        os.fsync(file.fileno())


def drop_partial(folder: Path) -> None:
    """Remove the partial files of killed writers below a folder, which must not be in use."""
    for path in folder.rglob(".*.partial*"):
        path.unlink(missing_ok=True)


def holds_features(data: str | None) -> bool:
    """Return True if a file is an ``.npz`` of features; no other file is opened."""
    if data is None or not data.lower().endswith(".npz"):
        return False
    try:
        with zipfile.ZipFile(data) as archive:
            return any(name.endswith("features.npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):  # reading the data reports the error
        return False


@contextlib.contextmanager
def naming(path: Path, *temporary: Path) -> Iterator[None]:
    """Replace the file name in errors of writing by the final one.

    Args:
        path: the final name.
        temporary: files or folders that are only used on the way.
    """
    try:
        yield
    except OSError as error:
        name = None if error.filename is None else Path(os.fsdecode(error.filename))
        if name is None or any(name.is_relative_to(part) for part in temporary):
            error.filename, error.filename2 = str(path), None
        raise


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checked_archive(file: BinaryIO) -> BinaryIO:
    """Return an open ``.npz`` at its start; refuse a decompression bomb.

    Raises:
        ValueError: a part unpacks to much more than its compressed size.
        zipfile.BadZipFile: it is not an archive.
    """
    with zipfile.ZipFile(file) as archive:
        for part in archive.infolist():
            if part.file_size > max(_LEAST_PACKED, _MOST_PACKED * part.compress_size):
                raise ValueError(
                    f"{part.filename} unpacks to {part.file_size / 1e6:,.0f} MB, from "
                    f"{part.compress_size / 1e6:,.1f} MB"
                )
    file.seek(0)
    return file


def check_target(
    path: Path | None, suffixes: Sequence[str] = (), inputs: Iterable[Path | str] = ()
) -> None:
    """Refuse an output file that can't or must not be written, before anything is computed.

    Args:
        path: None for the screen.
        suffixes: allowed suffixes of its name; empty for any.
        inputs: files that are read, which it must not replace.

    Raises:
        ConfigError: another suffix, a folder has the name, it is one of the inputs, or its folder
            is not writable.
    """
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{display_path(path)}: a folder has this name; choose another one")
    if suffixes and path.suffix.lower() not in suffixes:
        raise ConfigError(
            f"{display_path(path)}: the name of this file ends in {' or '.join(suffixes)}"
        )
    for file in inputs if path.exists() else ():
        with contextlib.suppress(OSError):  # an input that is not found
            if path.samefile(file):
                raise ConfigError(
                    f"{display_path(path)}: this file is an input, which the output would replace; "
                    "choose another name"
                )
    check_writable(path.absolute().parent, display_path(path))


def check_writable(path: Path, what: str) -> None:
    """Refuse a path that is not writable.

    Args:
        path: to a file or folder, which need not exist.
        what: start of the message.

    Raises:
        ConfigError: names the nearest existing folder, which is not writable.
    """
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{what}: {display_path(existing)} can't be written; choose another folder"
        )
