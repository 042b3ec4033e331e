"""CVAT's form "ImageNet 1.0": a zip archive or a folder with a folder of images for each class."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ssl_toolkit.data.images.files import IMAGE_SUFFIXES
from ssl_toolkit.data.readers.folders import left_by_tools
from ssl_toolkit.data.readers.rows import RowErrors
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.files import write_atomically
from ssl_toolkit.labeling.exchange.answers import Answer, Entry
from ssl_toolkit.text import display_path, summarize

MOST_ENTRIES = 2_000_000
"""Most files in an archive or folder."""
NO_LABEL = "no_label"
"""Folder of the images without an answer."""
_DATE = (1980, 1, 1, 0, 0, 0)


def write(path: Path, entries: Sequence[Entry], files: Mapping[str, Path]) -> int:
    """Write the images with a label as a zip archive; return how many there are.

    Args:
        path: Path to the archive.
        entries: Images; those without a label are left out.
        files: Path to the file of each image, by key.

    Raises:
        ConfigError: The name of a class can't be the name of a folder.
        OSError: A file can't be read, or the archive can't be written.
    """
    labeled = [(entry.key, entry.label) for entry in entries if entry.label]
    labels = {label for _, label in labeled}
    odd = {name for name in labels if "/" in name or name == NO_LABEL or left_by_tools(name)}
    if odd:
        raise ConfigError(
            f"{display_path(path)}: {summarize(sorted(map(repr, odd)))} can't be the names of "
            "folders of classes; choose another format, or rename the classes"
        )

    def fill(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for key, label in labeled:
                info = zipfile.ZipInfo(f"{label}/{key}", _DATE)
                archive.writestr(info, files[key].read_bytes())

    write_atomically(path, fill)
    return len(labeled)


def answers(path: Path, bad: RowErrors, classes: Sequence[str] = ()) -> Iterator[Answer]:
    """Yield the classes of the images of an archive or a folder; no file is extracted or opened.

    Files that tools leave behind, and images in `NO_LABEL` unless it is a class, are left out.

    Args:
        path: Path to the archive or folder.
        bad: Collects the entries that are not in a class folder.
        classes: Names of the classes that are known.

    Raises:
        DataError: It can't be read, is too large, or a name leads out of it.
    """
    where = display_path(path)
    names = _in_folder(path) if path.is_dir() else _in_archive(path, where)
    for number, name in enumerate(names, 1):
        if number > MOST_ENTRIES:
            raise DataError(f"{where}: has more than {MOST_ENTRIES:,} files; import it in parts")
        label, _, image = name.partition("/")
        if name.startswith("/") or ".." in name.split("/"):
            raise DataError(f"{where}: the entry {name!r} leads out of the archive; refused")
        is_image = os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
        if not is_image or any(map(left_by_tools, name.split("/"))):
            continue
        if not image:
            bad.add(number, f"{name!r} is in no class folder")
            continue
        if label == NO_LABEL and NO_LABEL not in classes:
            continue
        # The names of ImageNet's own files start with their class.
        folder, slash, base = image.rpartition("/")
        other = folder + slash + base.removeprefix(f"{label}_")
        yield Answer(number, image, label, other if other != image else "")


def _in_archive(path: Path, where: str) -> Iterable[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()]
    except OSError as error:
        raise DataError(f"can't read {where}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DataError(f"{where}: no zip archive or corrupt: {error}") from None


def _in_folder(path: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            yield os.path.relpath(os.path.join(folder, file), path)
