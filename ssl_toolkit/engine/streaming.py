"""Unlabeled images that are decoded during training and never stored.

For images of which not even the decoded pixels fit on the disk. The order of the images is a
buffered shuffle (`buffered_order`), a function of seed and position alone, so a run resumes
exactly. Shards are read in large blocks, each once an epoch.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_toolkit.data.cache.decoded_images import Progress
from ssl_toolkit.data.cache.image_files import ImageFiles, files_of, skipped, unreadable
from ssl_toolkit.data.images.archives import MOST_BYTES, tar_member, too_long
from ssl_toolkit.data.images.files import each_image, try_image
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path, summarize

Order = Callable[[torch.Generator], Tensor]
"""Draws a permutation, (count,) int64."""

BLOCK_BYTES = 4 * 2**20
"""Read at once from a shard."""


class Blocks:
    """Bytes of large files, read a block at a time; the last few blocks are held.

    Args:
        most: blocks that are held, at least 1.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.reads = 0
        """Blocks read so far."""
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def read(self, file: str, start: int, length: int) -> bytes:
        """Some bytes of a file; fewer where it ends. From any thread.

        Raises:
            OSError: it can't be read.
        """
        first, last = start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES
        found = b"".join(self._block(file, number) for number in range(first, last + 1))
        start -= first * BLOCK_BYTES
        return found[start : start + length]

    def _block(self, file: str, number: int) -> bytes:
        with self._lock:
            block = self._held.pop((file, number), None)
            if block is None:
                self.reads += 1
                with open(file, "rb", buffering=0) as source:
                    source.seek(number * BLOCK_BYTES)
                    block = source.read(BLOCK_BYTES)
            self._held[file, number] = block
            while len(self._held) > self.most:
                self._held.popitem(last=False)
        return block


class StreamedImages:
    """Images of files, decoded at every access.

    Args:
        files: the files.
        rows: (n,) rows of their table, at least one.
        labels: (n,) their classes, -1 for none.
        size: side in pixels.
        buffer: images that the order mixes; says how much of the shards is held.
        refuse: whether an image that can't be read ends the training. Otherwise the next one of
            the same class (also unlabeled, if it is) replaces it, always the same.
    """

    def __init__(
        self,
        files: ImageFiles,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        size: int,
        *,
        buffer: int,
        refuse: bool,
    ) -> None:
        self.size = size
        self.skipped: dict[str, str] = {}
        """Reason why an image could not be read, by path."""
        self._files = files
        self._rows = rows
        self._labels = labels
        self._refuse = refuse
        # A block may be wanted again while the order moves on by twice its buffer.
        window = 2 * buffer * self._mean_bytes()
        self.blocks = Blocks(2 + int(-(-window // BLOCK_BYTES)))

    @property
    def warning(self) -> str:
        """A warning about `skipped` in one line; empty if there are none."""
        if not self.skipped:
            return ""
        names = summarize([f"{path} ({fault})" for path, fault in self.skipped.items()])
        return f"{len(self.skipped)} unlabeled images can't be read; others replaced them: {names}"

    def take(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images of `rows` at these places, (n, 3, size, size), freshly decoded.

        Raises:
            DataError: some can't be read, under `refuse`; or all of a class.
        """
        answers = self._decoded(places.tolist())
        if self._refuse and (bad := self._named(places, answers)):
            raise DataError(
                [*(f"can't read image {path}: {fault}" for path, fault in bad.items()), _WAY_OUT]
            )
        images = np.empty((len(places), 3, self.size, self.size), dtype=np.uint8)
        for at, (place, answer) in enumerate(zip(places.tolist(), answers, strict=True)):
            pixels = self._stand_in(place, answer) if isinstance(answer, str) else answer
            images[at] = pixels.transpose(2, 0, 1)
        return images

    def _decoded(self, places: Sequence[int]) -> list[NDArray[np.uint8] | str]:
        paths = [Path(self._path(place)) for place in places]
        return each_image(self._decode, paths, self._files.workers)

    def _decode(self, path: Path) -> NDArray[np.uint8] | str:
        member = tar_member(path)
        if member is None:
            return try_image(path, self.size, self._files.fit)
        if member[2] > MOST_BYTES:
            return too_long(member[2])
        try:
            return try_image(self.blocks.read(*member), self.size, self._files.fit)
        except OSError as error:
            return error.strerror or str(error)

    def _stand_in(self, place: int, fault: str) -> NDArray[np.uint8]:
        label = self._labels[place]
        alike = np.flatnonzero(self._labels == label)
        self.skipped[display_path(Path(self._path(place)))] = fault
        start = int(np.searchsorted(alike, place))
        for other in np.roll(alike, -start)[1:].tolist():
            (answer,) = self._decoded([other])
            if not isinstance(answer, str):
                return answer
            self.skipped[display_path(Path(self._path(other)))] = answer
        raise DataError(
            f"can't read image {display_path(Path(self._path(place)))}: {fault}, nor others"
        )

    def _named(
        self, places: NDArray[np.int64], answers: Sequence[NDArray[np.uint8] | str]
    ) -> dict[str, str]:
        return {
            display_path(Path(self._path(place))): answer
            for place, answer in zip(places.tolist(), answers, strict=True)
            if isinstance(answer, str)
        }

    def _path(self, place: int) -> str:
        return self._files[int(self._rows[place])]

    def _mean_bytes(self) -> float:
        """Of the shards an image, all that is in them counted; 0 where there are none."""
        members = (tar_member(self._path(place)) for place in range(len(self._rows)))
        archives = {member[0] for member in members if member is not None}
        return sum(os.path.getsize(archive) for archive in archives) / len(self._rows)


_WAY_OUT = "repair the images and run `ssl-toolkit resume`, or start with --on-bad-image skip"


def buffered_order(sequence: Tensor, runs: Sequence[int], buffer: int) -> Order:
    """Orders that read run after run, from start to end, through a shuffle buffer.

    The runs come in an order drawn for each epoch. An index comes after at most `buffer` others
    that follow it there, so that reading from start to end never holds more than `buffer`.

    Args:
        sequence: (n,) indices in the order of reading.
        runs: how many of them make each run, n in all.
        buffer: at least 1; 1 changes nothing but the order of the runs.
    """
    pieces = torch.split(sequence, [*runs])

    def order(generator: torch.Generator) -> Tensor:
        turns = torch.randperm(len(pieces), generator=generator).tolist()
        read = torch.cat([pieces[turn] for turn in turns])
        delays = torch.rand(len(read), generator=generator, dtype=torch.float64)
        # Index i leaves between i and i + buffer - 1, in the order of these times.
        times = torch.arange(len(read), dtype=torch.float64) + (buffer - 1) * delays
        return read[torch.argsort(times, stable=True)]

    return order


def reading_order(files: ImageFiles, rows: NDArray[np.int64], buffer: int) -> Order:
    """The orders in which rows of a table are streamed; see `buffered_order`.

    Images of one shard make a run, all that are files of their own another.

    Args:
        files: the images of the table.
        rows: (n,) rows; the order draws places in it.
        buffer: images that are mixed.
    """
    sequence = np.argsort(rows, kind="stable")
    runs: list[int] = []
    last = None
    for row in rows[sequence].tolist():
        shard, inside, _ = files[row].partition("::")
        shard = shard if inside else ""
        if shard != last:
            runs.append(0)
            last = shard
        runs[-1] += 1
    return buffered_order(torch.from_numpy(sequence), runs, buffer)


def keep_all_but_unlabeled(
    table: ImageTable, split: Split, size: int, *, refuse: bool, progress: Progress | None
) -> Split:
    """Decode labeled, validation and test images into a cache of their own.

    Args:
        table: its images are files, of which none was opened.
        split: of the table.
        size: side in pixels.
        refuse: whether unreadable ones are an error; else they leave their part.
        progress: called while they are decoded.

    Raises:
        DataError: some can't be read; or a class is left without labeled images.
    """
    files = files_of(table)
    assert files is not None
    files.cache_only(np.concatenate([split.labeled, split.validation, split.test]))
    faults = files.open(size, progress)
    note = (
        f"the {len(split.unlabeled)} unlabeled images are decoded during training: they "
        "are neither verified before nor compared with the others"
    )
    split = replace(split, notes=(*split.notes, note))
    if not faults:
        return split
    if refuse:
        raise unreadable(files, faults)
    bad = np.array([*faults], dtype=np.int64)
    notes = skipped(table.keys, faults)
    kept = {
        part: getattr(split, part)[~np.isin(getattr(split, part), bad)]
        for part in ("labeled", "unlabeled", "validation", "test")
    }
    counts = np.bincount(table.labels[kept["labeled"]], minlength=len(table.classes))
    if bare := [table.classes[label] for label in np.flatnonzero(counts == 0)]:
        raise DataError(f"no labeled image of {summarize(bare)} can be read")
    return replace(split, **kept, notes=(*split.notes, *notes))
