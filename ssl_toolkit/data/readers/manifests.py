"""Read lists of images: CSV, TSV and JSONL manifests, and lists of ``path label`` lines."""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ssl_toolkit.data.class_names import class_name, name_fault
from ssl_toolkit.data.packed_strings import PackedStrings, may_have_duplicates
from ssl_toolkit.data.readers.image_files import TableBuilder
from ssl_toolkit.data.readers.rows import SEPARATOR, Record, RowErrors, records
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import SplitName
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path, display_text, summarize

PARTS: dict[str, SplitName] = {
    "": "pool",
    "pool": "pool",
    "train": "pool",
    "labeled": "labeled",
    "labelled": "labeled",
    "unlabeled": "unlabeled",
    "unlabelled": "unlabeled",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
"""Parts by the values of a column ``split``, in lower case."""


_LEADING_SPLIT = re.compile(rf"({'|'.join(sorted(filter(None, PARTS), reverse=True))})(?![a-z])")


def read_manifest(
    path: Path, root: Path | None, rows: TableBuilder, least_classes: int = 2
) -> tuple[str, ...]:
    """Add the images of a manifest to a table, without opening them.

    The header of a table has the columns ``path`` and optionally ``label`` and ``split``, in any
    order; others are ignored. JSONL has an object with these keys per line. A list (``.txt``) has a
    path, a space and a label per line. Labels in `class_names.UNLABELED`, in any case, mean no
    label; all others are class names, where the Unicode forms of a name are one class. An empty
    split means the pool; images of the pool without a label are unlabeled.

    Args:
        path: The file, UTF-8; its extension is one of `rows.SUFFIXES`.
        root: Folder that paths are relative to, and that neither they nor links may lead out of;
            None for the manifest's folder.
        rows: Table to add the images to.
        least_classes: Number of classes with labels that are needed.

    Returns:
        The classes, sorted as text: those of labeled and pool images.

    Raises:
        DataError: The file can't be read, some rows are invalid (reported by line), too few
            classes have labels, or none of the images exists.
    """
    bad = RowErrors(display_path(path))
    found = records(path, bad, "path", rows.notes)
    base = path.parent if root is None else root
    classes = fill_from_files(found, base, bad, rows, least_classes)
    if several := [name for name in classes if SEPARATOR in name]:
        rows.notes.append(
            f"labels with {SEPARATOR} are classes of this name; --task multilabel reads several "
            f"classes per image: {summarize(several)}"
        )
    return classes


def fill_from_files(
    found: Iterable[Record],
    root: Path,
    bad: RowErrors,
    rows: TableBuilder,
    least_classes: int = 2,
) -> tuple[str, ...]:
    """Add records of image files to the table; see `read_manifest`.

    Args:
        found: The records.
        root: Folder that paths are relative to.
        bad: Collects the errors.
        rows: Table to add the images to, with no images yet.
        least_classes: As for `read_manifest`.

    Raises:
        DataError: As `read_manifest`.
    """
    base = os.path.abspath(root)
    classes = fill(found, base, bad, rows, Links(base), least_classes)
    rows.paths = rows.keys
    if not rows.keys.is_ascii() and any(file_name(key) != key for key in rows.keys):
        rows.paths = PackedStrings(file_name(key) for key in rows.keys)
    rows.base = base
    if rows.keys and not any(os.path.exists(os.path.join(base, name)) for name in rows.paths):
        first = display_path(Path(base, rows.paths[0]))
        raise DataError(
            f"none of the {len(rows.keys):,} images of {bad.where} exists, the first should be "
            f"{first}; name the folder that its paths start from with --root DIR"
        )
    return classes


def fill(
    found: Iterable[Record],
    base: str,
    bad: RowErrors,
    rows: TableBuilder,
    links: Links | None = None,
    least_classes: int = 2,
) -> tuple[str, ...]:
    """Add keys, labels and splits of records to the table, but not the location of images.

    Args:
        found: The records.
        base: The absolute folder that their paths must not leave.
        bad: Collects the errors.
        rows: Table to add to, in the order of the records, with no images yet.
        links: Finds paths that lead out of `base` by a link; None if paths are not files.
        least_classes: Number of classes with labels that are needed.

    Returns:
        The classes.

    Raises:
        DataError: Some records are invalid, or too few classes have labels.
    """
    keys = rows.keys
    lines = array("q")
    names: dict[str, int] = {}
    forms: dict[str, int] = {"": -1}
    numbers = array("q")
    splits: list[SplitName] = []
    for line, text, label, split in found:
        key = inside(text, base) if _may_be_odd(text) else text
        part = PARTS.get(split) or PARTS.get(split.strip().lower())
        if not key:
            bad.add(line, f"{text!r} is no path inside {display_path(Path(base))}{_ROOT_HINT}")
        elif fault := name_fault(key):
            bad.add(line, f"the path {text!r} {fault}")
        elif label not in forms and (fault := name_fault(label)):
            bad.add(line, f"the label {label!r} {fault}")
        elif links is not None and (fault := links.fault(key)):
            bad.add(line, f"{text!r} {fault}")
        elif part is None:
            words = ", ".join(word for word in PARTS if word)
            bad.add(line, f"the split {split!r} is unknown; it is empty or one of {words}")
        elif not label and part in ("labeled", "validation", "test"):
            bad.add(line, f"{text!r} is in the {part} split and has no label")
        else:
            if label not in forms:
                forms[label] = names.setdefault(class_name(label), len(names))
            keys.append(key)
            lines.append(line)
            numbers.append(forms[label])
            splits.append(part if label else "unlabeled")
    if may_have_duplicates(keys):
        _report_duplicates(keys, lines, bad)
    classes = _classes(list(names), numbers, splits, lines, bad, rows.notes)
    bad.refuse()
    if len(classes) < least_classes:
        only = f" ({classes[0]})" if classes else ""
        raise DataError(
            f"{bad.where} has labeled images of {len(classes)} classes{only}; at least two are "
            "needed"
        )
    index_of_class = {name: number for number, name in enumerate(classes)}
    final = [*(index_of_class.get(name, -1) for name in names), -1]  # the last one for -1: no label
    rows.labels += [final[number] for number in numbers]
    rows.splits += splits
    return classes


def _report_duplicates(keys: Sequence[str], lines: Sequence[int], bad: RowErrors) -> None:
    seen: dict[str, int] = {}
    for key, line in zip(keys, lines, strict=True):
        if key in seen:
            bad.add(line, f"{key!r} is already in {bad.unit} {seen[key]}")
        else:
            seen[key] = line


_ROOT_HINT = " (the manifest's folder; --root DIR names another)"


def _may_be_odd(text: str) -> bool:
    """Return True if a path may be absolute or may have an empty, ``.`` or ``..`` component."""
    return text[:1] in ("", "/", ".") or "/." in text or "//" in text or "\0" in text


def _classes(
    names: Sequence[str],
    numbers: Sequence[int],
    splits: Sequence[SplitName],
    lines: Sequence[int],
    bad: RowErrors,
    notes: list[str],
) -> tuple[str, ...]:
    """Return the classes of labeled and pool images; any other class is an error or a note."""
    labeled = {
        number
        for number, part in zip(numbers, splits, strict=True)
        if number >= 0 and part in ("labeled", "pool")
    }
    classes = tuple(sorted(names[number] for number in labeled))
    hidden = Counter[str]()
    for number, part, line in zip(numbers, splits, lines, strict=True):
        if number < 0 or number in labeled:
            continue
        if part == "unlabeled":
            hidden[names[number]] += 1
        else:
            hint = did_you_mean(names[number], classes)
            if SEPARATOR in names[number]:
                hint = "; --task multilabel reads it as several classes"
            bad.add(line, f"class {names[number]!r} has no labeled image{hint}")
    if hidden:
        notes.append(
            f"labels of unlabeled images that are no class of the labeled ones are not used, "
            f"{hidden.total()} images: {summarize(list(hidden))}"
        )
    return classes


def part_of(name: str) -> str:
    """Return the split at the start of a file's or folder's name, such as ``train-00001.tar``."""
    match = _LEADING_SPLIT.match(name.lower())
    return match[1] if match else ""


def key_and_split(file: Path, top: Path) -> tuple[str, str]:
    """Return the key prefix of a file's images, and the split in its name or its folder's.

    Args:
        file: Path to a file of many images.
        top: The data folder, or the file itself.
    """
    key = display_text(file.name if file == top else os.path.relpath(file, top))
    folder = "" if top in (file, file.parent) else file.parent.name
    return key, part_of(file.name) or part_of(folder)


def inside(text: str, base: str) -> str | None:
    """Return a path relative to a folder; None if it leads outside.

    Absolute paths and ``..`` are allowed if the path ends inside.

    Args:
        text: The path.
        base: The folder, absolute.
    """
    if not text or "\0" in text:
        return None
    full = os.path.normpath(os.path.join(base, text))
    for start in (base, os.path.realpath(base)):
        start = start.rstrip(os.sep) + os.sep
        if full.startswith(start):
            return full[len(start) :]
    return None


class Links:
    """Find paths that lead out of a folder by a link; each folder on the way is checked once.

    Args:
        base: The folder, absolute.
        tops: Folders in it that may be links themselves.
    """

    def __init__(self, base: str, tops: Iterable[str] = ()) -> None:
        self._base = base
        self._roots = [Path(os.path.realpath(os.path.join(base, top))) for top in ("", *tops)]
        self._folders: dict[str, str] = {}

    def fault(self, key: str) -> str:
        """Return how a path leads out of the folder, as the end of a sentence; empty if inside."""
        name = file_name(key)
        folder = os.path.dirname(name)
        if folder not in self._folders:
            self._folders[folder] = self._leads_to(folder)
        path = os.path.join(self._base, name)
        return self._folders[folder] or (self._leads_to(name) if os.path.islink(path) else "")

    def _leads_to(self, name: str) -> str:
        real = Path(os.path.realpath(os.path.join(self._base, name)))
        if any(real.is_relative_to(root) for root in self._roots):
            return ""
        return (
            f"leads by a link out of {display_path(Path(self._base))} to {display_path(real)}; "
            "write where the images are, and name a folder of all with --root"
        )


def file_name(key: str) -> str:
    """Return a UTF-8 text as the name of a file, regardless of the locale's encoding."""
    return key if key.isascii() else os.fsdecode(key.encode("utf-8", "surrogatepass"))
