"""Data sets of image files that text files list: a path and the number of a class per line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ssl_toolkit import DataError, ImageTable, SplitName, default_root, file_table

MOST_ERRORS = 20


@dataclass(frozen=True)
class ListedImage:
    """A line of a list."""

    key: str
    label: int
    split: SplitName
    source: str
    """File and line, for messages."""


@dataclass(frozen=True)
class Layout:
    """Files of such a data set, which can't be downloaded."""

    name: str
    """Name of the data set, and of its folder in the default folder of data sets."""
    folder: str
    lists: Mapping[str, SplitName]
    """Split of the images of each list, by the list's file name."""
    images: Mapping[str, str]
    """Archive of each folder of images."""
    line: str
    """Regular expression of a line."""
    form: str
    """Description of a line, for messages."""

    def read(self, root: Path | None, download: bool) -> tuple[Path, list[ListedImage], list[str]]:
        """Return the folder, the images in the order of the lists, and one error per invalid line.

        Args:
            root: As for `Dataset.load`.
            download: As for `Dataset.load`.

        Raises:
            DataError: Files are missing or unreadable.
        """
        folder = default_root() / self.folder if root is None else root
        required = [*self.lists, *self.images]
        if missing := [name for name in required if not (folder / name).exists()]:
            never = "; it can't be fetched with --download" if download else ""
            names = ", ".join([*(f"{name}/" for name in self.images), *self.lists])
            raise DataError(
                f"{self.name} is not in {folder} ({', '.join(missing)} missing); give the folder "
                f"that holds {names} with --root DIR{never}"
            )
        images: list[ListedImage] = []
        errors: list[str] = []
        known: set[str] = set()
        for name, split in self.lists.items():
            path = folder / name
            try:
                lines = path.read_text(encoding="utf-8-sig").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"can't read {path}: {error}") from None
            for number, line in enumerate(lines, 1):
                text, _, label = line.strip().rpartition(" ")
                key = os.path.normpath(text).replace(os.sep, "/")
                source = f"{path}, line {number}"
                if not re.fullmatch(rf"(?!/|\.\./){self.line}", f"{key} {label}"):
                    if line.strip():
                        errors.append(f"{source}: {line!r} is invalid; expected {self.form}")
                elif key in known:
                    errors.append(f"{source}: {key!r} is in a list already")
                else:
                    known.add(key)
                    images.append(ListedImage(key, int(label), split, source))
        return folder, images, errors

    def table(
        self,
        folder: Path,
        classes: Sequence[str],
        images: Sequence[ListedImage],
        errors: Sequence[str],
        notes: Sequence[str],
    ) -> ImageTable:
        """Return the table of these images.

        Raises:
            DataError: There are errors, or none of the images exists.
        """
        if errors:
            raise DataError(list(errors[:MOST_ERRORS]))
        if not any((folder / image.key).exists() for image in images):
            first = f", the first should be {folder / images[0].key}" if images else ""
            raise DataError(
                f"none of the {len(images):,} images of {folder / next(iter(self.lists))} exists"
                f"{first}; unpack {', '.join(self.images.values())} there"
            )
        return file_table(
            folder,
            classes,
            [(image.key, image.label, image.split) for image in images],
            notes,
            [image.source for image in images],
        )
