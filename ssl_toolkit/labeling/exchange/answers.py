"""Answers in files of other tools, and the images of the data that they name."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ssl_toolkit.data.class_names import class_name, name_fault
from ssl_toolkit.data.readers.folders import SPLITS
from ssl_toolkit.data.readers.rows import RowErrors
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path

MOST_BYTES = 512 * 2**20
"""Largest file that is read; a million answers have about 300 MB in Label Studio's form."""


class Answer(NamedTuple):
    """A label that a tool has for an image."""

    number: int
    """Position in the file, from 1, for messages."""
    name: str
    """The image, as the file names it: its key, or a path or address that ends in it."""
    label: str
    """Empty for an image that was skipped."""
    other_name: str = ""
    """Another name, if the data has no image of the first; empty for none."""


class Entry(NamedTuple):
    """An image for a tool: its label, and the guess of a model."""

    key: str
    label: str | None
    """Empty for a skipped image; None for one without an answer."""
    guess: str = ""
    """Empty for none."""
    confidence: float | None = None
    score: float | None = None
    """Value by which the image was chosen to be labeled."""
    method: str = ""


def read_json(path: Path, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Read a JSON file.

    Args:
        path: Path to the file.
        hook: As ``object_pairs_hook`` of `json.loads`.

    Raises:
        DataError: It is not found, larger than `MOST_BYTES`, or not JSON.
    """
    name = display_path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"{name}: has more than {MOST_BYTES // 2**20} MiB; export it in parts")
        return json.loads(path.read_bytes(), object_pairs_hook=hook)
    except OSError as error:
        raise DataError(f"can't read {name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not JSON or corrupt: {error}") from None


class ImageNames:
    """Find the keys of data by the names that other programs have for the images.

    Args:
        table: The data.
        stems: True if names have no extension.
    """

    def __init__(self, table: ImageTable, *, stems: bool = False) -> None:
        self._keys: dict[str, list[str]] = {}
        self._below_splits: dict[str, list[str]] = {}
        names = []
        for key in table.keys:
            name = without_suffix(key) if stems else key
            names.append((name[::-1], key))
            self._keys.setdefault(name, []).append(key)
            folder, _, rest = name.partition("/")
            if rest and folder.lower() in SPLITS:
                self._below_splits.setdefault(rest, []).append(key)
        self._reversed = sorted(names)  # by the ends of the names

    def find(self, name: str) -> list[str]:
        """Return the images that a name may mean.

        That is the image of this key; else those whose key ends in the name; else those whose key,
        with or without the folder of its split, is the longest end of the name.
        """
        if found := self._keys.get(name) or self.ending_in(name):
            return found
        parts = name.split("/")
        for start in range(1, len(parts)):
            end = "/".join(parts[start:])
            if found := [*self._keys.get(end, ()), *self._below_splits.get(end, ())]:
                return found
        return []

    def ending_in(self, name: str) -> list[str]:
        """Return at most two images whose key ends in a slash and the name."""
        end = f"/{name}"[::-1]
        first = bisect_left(self._reversed, (end,))
        return [key for text, key in self._reversed[first : first + 2] if text.startswith(end)]


def without_suffix(key: str) -> str:
    """Return a key without the extension of its file."""
    suffix = PurePosixPath(key).suffix
    return key.removesuffix(suffix) if suffix else key


def resolve(
    answers: Iterable[Answer],
    table: ImageTable,
    bad: RowErrors,
    classes: Sequence[str] = (),
    *,
    stems: bool = False,
) -> dict[str, str]:
    """Return the class by key, in the order of the answers; empty for skipped images.

    Args:
        answers: Answers of a file.
        table: The data.
        bad: Collects the errors.
        classes: Names that are allowed; empty for those of the data or, without any, for all.
        stems: True if the names have no extension.

    Raises:
        DataError: Answers are invalid: unknown or ambiguous images, validation and test ones, an
            unknown class, two answers for one image.
    """
    names = ImageNames(table, stems=stems)
    parts = dict(zip(table.keys, table.splits.tolist(), strict=True))
    known = [class_name(name) for name in classes or table.classes]
    allowed = {*known}
    result: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, name, label, other_name in answers:
        label, found = class_name(label), names.find(name)
        if not found and other_name:
            found = names.find(other_name)
        if fault := name_fault(label):
            bad.add(number, f"the class {label!r} {fault}")
        elif not found:
            others = names.ending_in(name.rpartition("/")[2])
            hint = f"; {others[0]!r} is in another folder" if others else ""
            bad.add(number, f"the data has no image {name!r}{hint}")
        elif len(found) > 1:
            bad.add(number, f"{name!r} may be {found[0]!r} or {found[1]!r}; use whole paths")
        elif parts[found[0]] in ("validation", "test"):
            bad.add(number, f"{found[0]!r} is a {parts[found[0]]} image")
        elif label and allowed and label not in allowed:
            hint = did_you_mean(label, known)
            bad.add(number, f"{found[0]!r} has the unknown class {label!r}{hint}")
        elif (key := found[0]) in result and result[key] != label:
            bad.add(
                number,
                f"two answers for {key!r}: {label!r}, and {result[key]!r} in {bad.unit} "
                f"{lines[key]}; keep one of them",
            )
        else:
            result.setdefault(key, label)
            lines.setdefault(key, number)
    bad.refuse()
    return result
