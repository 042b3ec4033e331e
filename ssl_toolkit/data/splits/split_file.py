"""``split.json``: a split by the names of its images and what they hold, usable elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ssl_toolkit.data.packed_strings import index_of
from ssl_toolkit.data.splits.contents import (
    NAMED,
    Changes,
    Content,
    compare_contents,
    content_of,
    parsed_entries,
)
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import write_atomically
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path, summarize

VERSION = 2
PARTS = ("labeled", "unlabeled", "validation", "test")
CONTENTS = {part: f"{part}_content" for part in PARTS}
"""The keys under which a file says what the images of a part hold; see `Content.lines`."""

NEW_RUN = "restore them, or start a new run without this split"


@dataclass(frozen=True)
class StoredSplit:
    """The content of a split file, as rows of a table."""

    path: Path
    split: Split
    content: Content

    def check(self, table: ImageTable, way_out: str = NEW_RUN) -> None:
        """Refuse images that are not those that the split was written with.

        Args:
            table: The one that the split was read for.
            way_out: What the user can do.

        Raises:
            DataError: One line with how many images of which part differ.
        """
        now = content_of(table, self.split)
        changes = compare_contents(self.content, now, len(self.split.unlabeled))
        if changes.description:
            raise data_changed(self.path, changes, way_out)


def data_changed(path: Path, changes: Changes, way_out: str = NEW_RUN) -> DataError:
    """Return the error for images that are not those of a split file."""
    return DataError(
        f"the data changed since {display_path(path)} was written: {changes.description}; {way_out}"
    )


def split_hash(table: ImageTable, split: Split, content: Content | None = None) -> str:
    """Return the SHA-256, in hexadecimal, over classes, keys and content of each part.

    Args:
        table: The images.
        split: Of the table; the order within a part counts.
        content: Of the split; None to look at the images.
    """
    return _hash(_fields(table, split, content or content_of(table, split)))


def save_split(path: Path, table: ImageTable, split: Split, content: Content | None = None) -> None:
    """Write a split with its hash, whole or not at all.

    Args:
        path: The file.
        table: The images.
        split: Of the table.
        content: Of the split; None to look at the images.

    Raises:
        OSError: It can't be written.
    """
    content = content or content_of(table, split)
    digest = _hash(_fields(table, split, content))
    head = {"version": VERSION, "hash": digest, "classes": list(table.classes)}

    def write(file: BinaryIO) -> None:
        file.write(json.dumps(head, indent=2, ensure_ascii=False)[:-2].encode())
        for name, texts in _fields(table, split, content).items():
            if name == "classes":
                continue
            file.write(f',\n  "{name}": ['.encode())
            blocks = _blocks(texts, ",\n    ", encode_basestring)
            if first := next(blocks, b""):
                file.write(b"\n    " + first)
                file.writelines(blocks)
                file.write(b"\n  ")
            file.write(b"]")
        file.write(b"\n}\n")

    write_atomically(path, write)


def load_split(path: Path, table: ImageTable) -> StoredSplit:
    """Read a split that `save_split` wrote, for the same images in any place.

    `StoredSplit.check` compares their content: some may not be read yet.

    Raises:
        DataError: No such file or no split file; other classes; images that the data doesn't
            have, that are twice in a part, that are labeled without a label, or that are test
            or validation ones and in another part too; or contents that don't match the hash.
    """
    content = _parse(path)
    where = display_path(path)
    stored_hash, computed_hash = content.pop("hash"), _hash(content)
    if content["classes"] != list(table.classes):
        raise DataError(
            f"{where} was made for the classes {summarize(content['classes'])}; the data has "
            f"{summarize(table.classes)}"
        )
    faults = []
    stored = _content(content)
    rows: dict[str, Rows] = {}
    for part in PARTS:
        keys = content.pop(part)
        indices = index_of(table.keys, keys)
        if unknown := [key for key, index in zip(keys, indices, strict=True) if index < 0]:
            message = f"{len(unknown):,} of {len(keys):,} {part} images"
            faults.append(f"{where}: {message} that the data doesn't have: {summarize(unknown)}")
        rows[part] = indices[indices >= 0]
        unique, counts = np.unique(rows[part], return_counts=True)
        if repeated := _keys(table, unique[counts > 1]):
            faults.append(f"{where}: {part} images that are listed twice: {summarize(repeated)}")
    for part, other in (
        ("validation", "labeled"),
        ("validation", "unlabeled"),
        ("test", "labeled"),
        ("test", "unlabeled"),
        ("test", "validation"),
    ):
        if shared := sorted(_keys(table, np.intersect1d(rows[part], rows[other]))):
            faults.append(f"{where}: images that are both {part} and {other}: {summarize(shared)}")
    faults += [
        f"{where}: {part} images that carry no label: {summarize(keys)}"
        for part in NAMED
        if (keys := _keys(table, rows[part][table.labels[rows[part]] < 0]))
    ]
    labeled, unlabeled, validation, test = (rows[part] for part in PARTS)
    split = Split(labeled, unlabeled, validation, test)
    if not faults and (stored_hash != computed_hash or not stored):
        faults.append(_damaged(path))
    if faults:
        raise DataError(faults)
    assert stored is not None
    return StoredSplit(path, split, stored)


def read_hash(path: Path) -> str:
    """Return the hash of a split file after checking its content; needs no images.

    Raises:
        DataError: No such file or no split file, or it was changed.
    """
    content = _parse(path)
    digest: str = content.pop("hash")
    if digest != _hash(content):
        raise DataError(_damaged(path))
    return digest


def compare_files(path: Path, other: Path) -> str:
    """Describe how the images of two split files differ, in one sentence; needs no images.

    Empty where they don't, or where one of them can't be read.
    """
    try:
        was, now = _parse(path), _parse(other)
    except DataError:
        return ""
    first, second = _content(was), _content(now)
    if first is None or second is None:
        return ""
    changes = Changes()
    for part in PARTS:
        index = {key: i for i, key in enumerate(now[part])}
        pairs = [(i, index[key]) for i, key in enumerate(was[part]) if key in index]
        count = len(was[part])
        changes.count(part, count - len(pairs), len(now[part]) - len(pairs), count)
        if part in NAMED:
            i, j = np.array(pairs, np.int64).reshape(-1, 2).T
            changes.compare(part, getattr(first, part)[i], getattr(second, part)[j])
        elif was[part] == now[part]:
            changes.compare_pool(first.unlabeled, second.unlabeled, count)
    return changes.description


def _damaged(path: Path) -> str:
    return f"{display_path(path)} doesn't match its hash: it was changed by hand or is damaged"


Fields = Mapping[str, Iterable[str]]
"""Texts by the key of a split file under which they are a list."""


def _fields(table: ImageTable, split: Split, content: Content) -> Fields:
    """Return the fields that the hash of a split covers."""
    keys = {part: (table.keys[row] for row in getattr(split, part).tolist()) for part in PARTS}
    contents = {name: content.lines(part) for part, name in CONTENTS.items()}
    return {"classes": table.classes, **keys, **contents}


def _hash(fields: Fields) -> str:
    """Return the SHA-256 of the fields as JSON without spaces."""
    digest = hashlib.sha256()
    for i, (name, texts) in enumerate(sorted(fields.items())):
        digest.update(f'{"," if i else "{"}"{name}":['.encode())
        for block in _blocks(texts, ",", encode_basestring_ascii):
            digest.update(block)
        digest.update(b"]")
    digest.update(b"}")
    return digest.hexdigest()


def _blocks(texts: Iterable[str], between: str, encode: Callable[[str], str]) -> Iterator[bytes]:
    """Yield the inside of a JSON list some texts at a time: a million would take much memory."""
    items, start = map(encode, texts), ""
    while block := between.join(islice(items, 4096)):
        yield (start + block).encode()
        start = between


def _content(fields: dict[str, Any]) -> Content | None:
    """Return the content of a file's images; None if the file is damaged."""
    pool = fields[CONTENTS["unlabeled"]]
    try:
        named = {part: parsed_entries(fields[CONTENTS[part]]) for part in NAMED}
    except ValueError:
        return None
    is_complete = all(len(named[part]) == len(fields[part]) for part in NAMED) and len(pool) == 1
    return Content(**named, unlabeled=pool[0]) if is_complete else None


def _keys(table: ImageTable, rows: Rows) -> list[str]:
    return [table.keys[row] for row in rows.tolist()]


def _parse(path: Path) -> dict[str, Any]:
    """Return the content without the version, with all types checked."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"can't read the split file {display_path(path)}: {error.strerror}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{display_path(path)} is no split file: {error}") from None
    fields = ("classes", *PARTS, *CONTENTS.values())
    if isinstance(content, dict) and content.get("version", VERSION) != VERSION:
        raise DataError(
            f"{display_path(path)} has another version than {VERSION}; make it again with a new run"
        )
    is_complete = isinstance(content, dict) and set(content) == {"version", "hash", *fields}
    if not is_complete or not all(_is_texts(content[name]) for name in fields):
        names = ", ".join(("version", "hash", *fields))
        raise DataError(f"{display_path(path)} is no split file; one holds {names}")
    del content["version"]
    return dict(content)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
