"""Many strings in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

_BLOCK = 4096  # strings decoded at a time


class PackedStrings(Sequence[str]):
    """Sequence of strings, stored as UTF-8 one after another, without an object for each.

    Equal to any sequence of the same strings.

    Args:
        texts: The initial strings.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._bytes = bytearray()
        self._ends = array("q", [0])
        self.extend(texts)

    def append(self, text: str) -> None:
        """Append a string, which may hold bytes of a file name that are not UTF-8 (surrogates)."""
        self._bytes += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._bytes))

    def extend(self, texts: Iterable[str]) -> None:
        """Append several strings."""
        for text in texts:
            self.append(text)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            ends = self._ends[start : start + _BLOCK + 1].tolist()
            block = self._bytes[ends[0] : ends[-1]]
            bounds = [end - ends[0] for end in ends]
            if block.isascii():  # a character a byte: decoded once
                text = block.decode("ascii")
                yield from (text[first:last] for first, last in pairwise(bounds))
            else:
                for first, last in pairwise(bounds):
                    yield block[first:last].decode("utf-8", "surrogatepass")

    def is_ascii(self) -> bool:
        """Return True if all characters are ASCII."""
        return self._bytes.isascii()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        index = range(len(self))[index]
        text = self._bytes[self._ends[index] : self._ends[index + 1]]
        return text.decode("utf-8", "surrogatepass")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"PackedStrings({list(self[:10])}{', …' if len(self) > 10 else ''})"


def index_of(texts: Sequence[str], wanted: Sequence[str]) -> NDArray[np.int64]:
    """Return the index in `texts` of each of `wanted`, -1 where it is not found.

    Args:
        texts: N strings, all different.
        wanted: N strings.

    Returns:
        (n,).
    """
    indices = dict.fromkeys(wanted, -1)
    for index, text in enumerate(texts):
        if text in indices:
            indices[text] = index
    return np.fromiter(map(indices.__getitem__, wanted), dtype=np.int64)


def may_have_duplicates(texts: Iterable[str]) -> bool:
    """Return True if duplicates may exist (64-bit hashes; no false negatives)."""
    hashes = np.sort(np.fromiter(map(hash, texts), dtype=np.int64))
    return bool((hashes[1:] == hashes[:-1]).any())
