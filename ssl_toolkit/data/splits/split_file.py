"""``split.json``: a portable split, with the keys and content digests of its images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring, encode_basestring_ascii
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

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
from ssl_toolkit.documents import Document
from ssl_toolkit.errors import DataError, ModelError
from ssl_toolkit.files import write_atomically
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path, summarize

PARTS = ("labeled", "unlabeled", "validation", "test")
NEW_RUN = "restore them, or start a new run without this split"


class SplitFile(Document):
    """The schema of ``split.json``: keys of the images of each part, and their content."""

    FORMAT: ClassVar[int] = 3

    hash: str
    """SHA-256 over all other fields; see `split_hash`."""
    classes: tuple[str, ...]
    labeled: tuple[str, ...]
    unlabeled: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    labeled_content: tuple[str, ...]
    """An entry per image; see `Content.lines`."""
    unlabeled_content: tuple[str]
    validation_content: tuple[str, ...]
    test_content: tuple[str, ...]
    imbalance: tuple[str, ...] = ()
    """Ratios of the long tails that were drawn; not in the file if there are none."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a split file and compare it with its hash.

        Raises:
            DataError: It is not found or damaged, of an unknown format, or was edited.
        """
        try:
            file = super().read(path)
        except FileNotFoundError:
            raise DataError(f"{display_path(path)}: split file not found") from None
        except ModelError as error:
            raise DataError(error.messages) from None
        fields = {name: getattr(file, name) for name in _FIELDS}
        if file.hash != _hash({k: v for k, v in fields.items() if v or k != "imbalance"}):
            raise DataError(
                f"{display_path(path)} doesn't match its hash: it was edited or is corrupt"
            )
        return file

    @property
    def content(self) -> Content:
        """Content of the images."""
        named = {part: parsed_entries(getattr(self, f"{part}_content")) for part in NAMED}
        return Content(**named, unlabeled=self.unlabeled_content[0])


_FIELDS = tuple(name for name in SplitFile.model_fields if name != "hash")


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
            way_out: How the user can proceed.

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
    head = {"format": SplitFile.FORMAT, "hash": digest, "classes": list(table.classes)}

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
    """Read a split file for the same images in any location.

    `StoredSplit.check` compares their content: some may not be read yet.

    Args:
        path: Path to the file.
        table: Images of the data.

    Raises:
        DataError: As `SplitFile.read`; or the data has other classes, or lacks images or labels.
    """
    file = SplitFile.read(path)
    where = display_path(path)
    if file.classes != table.classes:
        raise DataError(
            f"{where} was made for the classes {summarize(file.classes)}; the data has "
            f"{summarize(table.classes)}"
        )
    faults = []
    rows: dict[str, Rows] = {}
    for part in PARTS:
        keys = getattr(file, part)
        rows[part] = index_of(table.keys, keys)
        if unknown := [key for key, row in zip(keys, rows[part], strict=True) if row < 0]:
            message = f"{len(unknown):,} of {len(keys):,} {part} images"
            faults.append(f"{where}: {message} that the data doesn't have: {summarize(unknown)}")
        elif part in NAMED and (unlabeled := rows[part][table.labels[rows[part]] < 0]).size:
            keys = [table.keys[row] for row in unlabeled.tolist()]
            faults.append(f"{where}: {part} images without a label: {summarize(keys)}")
    if faults:
        raise DataError(faults)
    labeled, unlabeled, validation, test = (rows[part] for part in PARTS)
    split = Split(labeled, unlabeled, validation, test, imbalance=file.imbalance)
    return StoredSplit(path, split, file.content)


def compare_files(path: Path, other: Path) -> str:
    """Describe how the images of two split files differ, in one sentence; needs no images.

    Empty where they don't, or where one of them can't be read.
    """
    try:
        was, now = SplitFile.read(path), SplitFile.read(other)
    except DataError:
        return ""
    changes = Changes()
    for part in PARTS:
        keys, new_keys = getattr(was, part), getattr(now, part)
        index = {key: i for i, key in enumerate(new_keys)}
        pairs = [(i, index[key]) for i, key in enumerate(keys) if key in index]
        changes.count(part, len(keys) - len(pairs), len(new_keys) - len(pairs), len(keys))
        if part in NAMED:
            i, j = np.array(pairs, np.int64).reshape(-1, 2).T
            changes.compare(part, getattr(was.content, part)[i], getattr(now.content, part)[j])
        elif keys == new_keys:
            changes.compare_pool(was.content.unlabeled, now.content.unlabeled, len(keys))
    return changes.description


Fields = Mapping[str, Iterable[str]]
"""Texts by the key of a split file under which they are a list."""


def _fields(table: ImageTable, split: Split, content: Content) -> Fields:
    """Return the fields that the hash of a split covers."""
    keys = {part: (table.keys[row] for row in getattr(split, part).tolist()) for part in PARTS}
    contents = {f"{part}_content": content.lines(part) for part in PARTS}
    tails = {"imbalance": split.imbalance} if split.imbalance else {}
    return {"classes": table.classes, **keys, **contents, **tails}


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
