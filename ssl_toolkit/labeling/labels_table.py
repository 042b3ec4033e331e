"""The labels that a person assigned: a CSV `path,label`, which ``--labels`` reads.

Rows are in the order in which the images were labeled. An empty label marks an image that was
skipped; training doesn't use its row.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ssl_toolkit.data.class_names import class_name, name_fault
from ssl_toolkit.data.readers.label_sets import classes_in
from ssl_toolkit.data.readers.rows import RowErrors, records
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.files import check_writable, file_stamp, write_text
from ssl_toolkit.locking import hold_file
from ssl_toolkit.tabular import row_writer
from ssl_toolkit.text import display_path, summarize

COLUMNS = ("path", "label")


class LabelsTable:
    """The rows of a labels file; one that is not found is empty.

    Args:
        path: Path to the file, which ends in .csv.
        several: True if a label is any number of classes, as `classes_in` reads them.

    Raises:
        ConfigError: Its name ends otherwise, or its folder is not writable.
        DataError: The file can't be read, has other columns, or rows are invalid, reported by line.
    """

    def __init__(self, path: Path, *, several: bool = False) -> None:
        self.path: Path = path
        self.several: bool = several
        self.rows: dict[str, str] = {}
        """Class by path of the image, empty for a skipped one, in the order of labeling."""
        self._stamp: str | None = None
        name = display_path(path)
        if path.suffix.lower() != ".csv":
            raise ConfigError(f"{name}: the name of a labels file ends in .csv")
        if path.is_dir():
            raise ConfigError(f"{name}: a folder has this name; choose another file")
        # Files are replaced by renaming: a link must lead to the same file afterward.
        self._target = Path(os.path.realpath(path))
        check_writable(self._target.parent, name)
        self.refresh()

    @property
    def labels(self) -> dict[str, str]:
        """Class by path, without skipped images."""
        return {path: label for path, label in self.rows.items() if label}

    def classes(self) -> list[str]:
        """Return the classes in the order of their first label."""
        labels = dict.fromkeys(self.labels.values())
        if self.several:
            return [*dict.fromkeys(name for label in labels for name in sorted(classes_in(label)))]
        return [*labels]

    def hold(self) -> ExitStack:
        """Keep other writers out until the end of the returned context.

        Raises:
            ModelError: Another process holds the file.
        """
        return hold_file(self._target)

    def put(self, path: str, label: str) -> None:
        """Set the label of an image, empty if it was skipped; its row becomes the last one.

        Raises:
            DataError: The path or the label can't be a name.
        """
        for text in (path, label):
            if fault := name_fault(text):
                raise DataError(f"{display_path(self.path)}: {text!r} {fault}")
        self.rows.pop(path, None)
        self.rows[path] = class_name(label)

    def merge(self, labels: Mapping[str, str], *, replace: bool = False) -> dict[str, str]:
        """Add labels; a label never becomes empty.

        Args:
            labels: Class by path, empty for a skipped image.
            replace: True to replace labels that differ.

        Returns:
            The labels that were in the table and differ, by path.
        """
        differing: dict[str, str] = {}
        for path, label in labels.items():
            current = self.rows.get(path)
            if current == class_name(label) or (current and not label):
                continue
            if current:
                differing[path] = current
                if not replace:
                    continue
            self.put(path, label)
        return differing

    def write(self) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: The file can't be written; the previous one is untouched.
        """
        text = io.StringIO()
        write = row_writer(text, COLUMNS)
        for row in self.rows.items():
            write(row)
        write_text(self._target, text.getvalue())
        self._stamp = _stamp(self._target)

    def refresh(self) -> bool:
        """Read the file again if another program changed it; return True if it did.

        Raises:
            DataError: As the constructor.
        """
        stamp = _stamp(self._target)
        if stamp == self._stamp:
            return False
        self.rows = {} if stamp is None else _read(self._target, display_path(self.path))
        self._stamp = stamp
        return True


def _read(path: Path, name: str) -> dict[str, str]:
    bad, notes, rows = RowErrors(name), list[str](), dict[str, str]()
    if path.stat().st_size == 0:
        return rows
    lines: dict[str, int] = {}
    columns = set[str]()
    for line, key, label, split in records(path, bad, "path", notes, columns=columns):
        fault = next(filter(None, map(name_fault, (key, label))), "")
        if not key.strip():
            bad.add(line, "has no path")
        elif fault:
            bad.add(line, f"{key!r} with the label {label!r} {fault}")
        elif key in lines:
            bad.add(line, f"{key!r} is already in line {lines[key]}")
        elif split:
            notes.append("split")
        lines[key] = line
        rows[key] = class_name(label)
    if notes or "label" not in columns:
        header = summarize(_header(path))
        raise DataError(
            f"{name}: has the columns {header}; a labels file has path and label, and no others, "
            "as they would be lost; choose another file"
        )
    bad.refuse()
    return rows


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader([file.readline()]), [])


def _stamp(path: Path) -> str | None:
    try:
        return file_stamp(path)
    except FileNotFoundError:
        return None
