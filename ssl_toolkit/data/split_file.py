"""``split.json``: a split by the names of its pictures, usable on another machine."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit.data.pictures import shown
from ssl_toolkit.data.splits import Rows, Split
from ssl_toolkit.data.walk import some
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import write_json
from ssl_toolkit.interfaces import ImageTable

VERSION = 1
PARTS = ("labelled", "unlabelled", "validation", "test")


def split_hash(table: ImageTable, split: Split) -> str:
    """SHA-256, in hexadecimal, over the classes and the keys of each part in their order."""
    return _hash(_content(table, split))


def save_split(path: Path, table: ImageTable, split: Split) -> None:
    """Write a split with its hash, whole or not at all.

    Raises:
        OSError: it can't be written.
    """
    content = _content(table, split)
    write_json(path, {"version": VERSION, "hash": _hash(content), **content})


def load_split(path: Path, table: ImageTable) -> Split:
    """Read a split that `save_split` wrote, for the same pictures in any place.

    Raises:
        DataError: no such file or no split file; other classes; pictures that the data doesn't
            have, that stand twice in a part, that are labelled without a label, or that are test
            or validation ones and in another part too; or contents that don't match the hash.
    """
    content = _parse(path)
    where = shown(path)
    if content["classes"] != list(table.classes):
        raise DataError(
            f"{where} was made for the classes {some(content['classes'])}; the data has "
            f"{some(table.classes)}"
        )
    rows = {key: row for row, key in enumerate(table.keys)}
    faults = []
    for part in PARTS:
        keys = content[part]
        if foreign := [key for key in keys if key not in rows]:
            faults.append(f"{where}: {part} pictures that the data doesn't have: {some(foreign)}")
        if twice := [key for key, count in Counter(keys).items() if count > 1]:
            faults.append(f"{where}: {part} pictures that stand there twice: {some(twice)}")
    for part, other in (
        ("validation", "labelled"),
        ("validation", "unlabelled"),
        ("test", "labelled"),
        ("test", "unlabelled"),
        ("test", "validation"),
    ):
        if both := sorted(set(content[part]) & set(content[other])):
            faults.append(f"{where}: pictures that are both {part} and {other}: {some(both)}")
    for part in ("labelled", "validation", "test"):
        bare = [key for key in content[part] if key in rows and table.labels[rows[key]] < 0]
        if bare:
            faults.append(f"{where}: {part} pictures that carry no label: {some(bare)}")
    if not faults and content.pop("hash") != _hash(content):
        faults.append(f"{where} doesn't match its hash: it was changed by hand or is damaged")
    if faults:
        raise DataError(faults)

    def part_rows(part: str) -> Rows:
        return np.array([rows[key] for key in content[part]], dtype=np.int64)

    labelled, unlabelled, validation, test = map(part_rows, PARTS)
    return Split(labelled, unlabelled, validation, test)


def _content(table: ImageTable, split: Split) -> dict[str, Any]:
    parts = {part: [table.keys[row] for row in getattr(split, part).tolist()] for part in PARTS}
    return {"classes": list(table.classes), **parts}


def _hash(content: dict[str, Any]) -> str:
    text = json.dumps(content, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _parse(path: Path) -> dict[str, Any]:
    """The contents without the version, all of the right types."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"can't read the split file {shown(path)}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{shown(path)} is no split file: {error}") from None
    fields = {"classes", *PARTS}
    whole = isinstance(content, dict) and set(content) == {"version", "hash", *fields}
    if not whole or not all(_is_texts(content[name]) for name in fields):
        names = ", ".join(("version", "hash", "classes", *PARTS))
        raise DataError(f"{shown(path)} is no split file; one holds {names}")
    if content.pop("version") != VERSION:
        raise DataError(f"{shown(path)} has another version than {VERSION}; make it anew")
    return dict(content)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
