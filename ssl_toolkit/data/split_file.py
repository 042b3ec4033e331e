"""``split.json``: a split by the names of its pictures, usable on another machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ssl_toolkit.data.pictures import shown
from ssl_toolkit.data.splits import Rows, Split
from ssl_toolkit.data.texts import places_of
from ssl_toolkit.data.walk import some
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import write_atomically
from ssl_toolkit.interfaces import ImageTable

VERSION = 1
PARTS = ("labelled", "unlabelled", "validation", "test")

_BLOCK = 4096


def split_hash(table: ImageTable, split: Split) -> str:
    """SHA-256, in hexadecimal, over the classes and the keys of each part in their order."""
    content = {"classes": iter([list(table.classes)])}
    content |= {part: _blocks(table, getattr(split, part)) for part in PARTS}
    digest = hashlib.sha256()
    for place, (name, blocks) in enumerate(sorted(content.items())):
        # As the whole would be written without spaces, but a block at a time.
        digest.update(f'{"," if place else "{"}"{name}":['.encode())
        for text in _joined(blocks, ",", ensure_ascii=True):
            digest.update(text.encode())
        digest.update(b"]")
    digest.update(b"}")
    return digest.hexdigest()


def save_split(path: Path, table: ImageTable, split: Split) -> None:
    """Write a split with its hash, whole or not at all, a block of keys at a time.

    Raises:
        OSError: it can't be written.
    """
    head = {"version": VERSION, "hash": split_hash(table, split), "classes": list(table.classes)}

    def write(file: BinaryIO) -> None:
        file.write(json.dumps(head, indent=2, ensure_ascii=False)[:-2].encode())
        for part in PARTS:
            file.write(f',\n  "{part}": ['.encode())
            rows = getattr(split, part)
            for text in _joined(_blocks(table, rows), ",\n    ", ensure_ascii=False):
                file.write(text.encode())
            file.write(b"\n  ]" if len(rows) else b"]")
        file.write(b"\n}\n")

    write_atomically(path, write)


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
    faults = []
    rows: dict[str, Rows] = {}
    for part in PARTS:
        keys = content.pop(part)
        places = places_of(table.keys, keys)
        if foreign := [key for key, place in zip(keys, places, strict=True) if place < 0]:
            faults.append(f"{where}: {part} pictures that the data doesn't have: {some(foreign)}")
        rows[part] = places[places >= 0]
        found, counts = np.unique(rows[part], return_counts=True)
        if twice := _keys(table, found[counts > 1]):
            faults.append(f"{where}: {part} pictures that stand there twice: {some(twice)}")
    for part, other in (
        ("validation", "labelled"),
        ("validation", "unlabelled"),
        ("test", "labelled"),
        ("test", "unlabelled"),
        ("test", "validation"),
    ):
        if both := sorted(_keys(table, np.intersect1d(rows[part], rows[other]))):
            faults.append(f"{where}: pictures that are both {part} and {other}: {some(both)}")
    bare = {
        part: rows[part][table.labels[rows[part]] < 0] for part in PARTS if part != "unlabelled"
    }
    faults += [
        f"{where}: {part} pictures that carry no label: {some(_keys(table, found))}"
        for part, found in bare.items()
        if len(found)
    ]
    labelled, unlabelled, validation, test = (rows[part] for part in PARTS)
    split = Split(labelled, unlabelled, validation, test)
    if not faults and content["hash"] != split_hash(table, split):
        faults.append(f"{where} doesn't match its hash: it was changed by hand or is damaged")
    if faults:
        raise DataError(faults)
    return split


def read_hash(path: Path) -> str:
    """The hash of a split file, once its contents were found to match it; needs no pictures.

    Raises:
        DataError: no such file or no split file, or it was changed.
    """
    content = _parse(path)
    told: str = content.pop("hash")
    text = json.dumps(content, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    if told != hashlib.sha256(text.encode()).hexdigest():
        raise DataError(
            f"{shown(path)} doesn't match its hash: it was changed by hand or is damaged"
        )
    return told


def _keys(table: ImageTable, rows: Rows) -> list[str]:
    return [table.keys[row] for row in rows.tolist()]


def _blocks(table: ImageTable, rows: Rows) -> Iterator[list[str]]:
    """The keys of rows, some at a time: a million at once would take much memory."""
    for start in range(0, len(rows), _BLOCK):
        yield _keys(table, rows[start : start + _BLOCK])


def _joined(blocks: Iterable[list[str]], between: str, *, ensure_ascii: bool) -> Iterator[str]:
    """The inside of a JSON list of texts; `between` is a comma and what follows it."""
    for place, block in enumerate(blocks):
        start = between if place else between[1:]
        told = json.dumps(block, ensure_ascii=ensure_ascii, separators=(between, ":"))
        yield start + told[1:-1]


def _parse(path: Path) -> dict[str, Any]:
    """The contents without the version, all of the right types."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"can't read the split file {shown(path)}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
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
