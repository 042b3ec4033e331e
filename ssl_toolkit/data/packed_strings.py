"""Many texts in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

_BLOCK = 4096  # texts decoded at a time


class Texts(Sequence[str]):
    """Texts that are kept as UTF-8, one after another: a million take no more than their bytes.

    A text is made when it is asked for. Equal to any sequence of the same texts.

    Args:
        texts: the first ones.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._bytes = bytearray()
        self._ends = array("q", [0])
        self.extend(texts)

    def append(self, text: str) -> None:
        """Add one at the end; any text, also one with bytes of a file name that are no UTF-8."""
        self._bytes += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._bytes))

    def extend(self, texts: Iterable[str]) -> None:
        """Add several at the end."""
        for text in texts:
            self.append(text)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            ends = self._ends[start : start + _BLOCK + 1].tolist()
            block = self._bytes[ends[0] : ends[-1]]
            places = [end - ends[0] for end in ends]
            if block.isascii():  # a character a byte: decoded once
                text = block.decode("ascii")
                yield from (text[first:last] for first, last in pairwise(places))
            else:
                for first, last in pairwise(places):
                    yield block[first:last].decode("utf-8", "surrogatepass")

    def is_ascii(self) -> bool:
        """Whether all of their characters are ASCII."""
        return self._bytes.isascii()

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(self[one] for one in range(*place.indices(len(self))))
        ends = self._ends
        if place < 0:
            place += len(ends) - 1
        if not 0 <= place < len(ends) - 1:
            raise IndexError(f"text {place} of {len(self)}")
        return self._bytes[ends[place] : ends[place + 1]].decode("utf-8", "surrogatepass")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts({list(self[:10])}{', …' if len(self) > 10 else ''})"


def places_of(texts: Sequence[str], wanted: Sequence[str]) -> NDArray[np.int64]:
    """Where each of `wanted` stands in `texts`, which are all different; -1 for nowhere.

    Args:
        texts: N of them.
        wanted: n texts.

    Returns:
        (n,).
    """
    hashes = np.fromiter(map(hash, texts), dtype=np.int64)
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    sought = np.fromiter(map(hash, wanted), dtype=np.int64)
    starts = np.searchsorted(hashes, sought, side="left")
    ends = np.searchsorted(hashes, sought, side="right")
    found = np.full(len(wanted), -1, dtype=np.int64)
    known = ends > starts
    found[known] = order[starts[known]]
    for place, (text, row) in enumerate(zip(wanted, found.tolist(), strict=True)):
        if row >= 0 and texts[row] != text:  # hashes collide
            alike = order[starts[place] : ends[place]].tolist()
            found[place] = next((one for one in alike if texts[one] == text), -1)
    return found


def have_twins(texts: Iterable[str]) -> bool:
    """Whether two are perhaps the same, by hashes of 64 bits: never wrong when it says no."""
    hashes = np.sort(np.fromiter(map(hash, texts), dtype=np.int64))
    return bool((hashes[1:] == hashes[:-1]).any())
