"""Unlabeled images that are decoded during training and never cached.

For data sets whose decoded pixels do not fit on the disk. The order of the images is a
buffered shuffle (`buffered_order`), a function of seed and position alone, so a run resumes
exactly. Shards are read in large blocks, each once per epoch.
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

from ssl_toolkit.config.images import Size, sides
from ssl_toolkit.data.cache import Progress
from ssl_toolkit.data.images.archives import MOST_BYTES, tar_member, too_long
from ssl_toolkit.data.images.files import each_image, try_image
from ssl_toolkit.data.images.levels import Levels
from ssl_toolkit.data.readers.image_files import ImageFiles, files_of, skipped, unreadable
from ssl_toolkit.data.splits.draw import Split, without_rows
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path, summarize

Order = Callable[[torch.Generator], Tensor]
"""Draws a permutation, (count,) int64."""

BLOCK_BYTES = 4 * 2**20
"""Bytes of a shard that are read at once."""


class Blocks:
    """Bytes of large files, read a block at a time; the most recent blocks stay in memory.

    Args:
        most: maximum number of blocks in memory, at least 1.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.reads: int = 0
        """Blocks read so far."""
        self._recent: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def read(self, file: str, start: int, length: int) -> bytes:
        """Return some bytes of a file; fewer at its end. From any thread.

        Raises:
            OSError: the file can't be read.
        """
        first, last = start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES
        content = b"".join(self._block(file, number) for number in range(first, last + 1))
        start -= first * BLOCK_BYTES
        return content[start : start + length]

    def _block(self, file: str, number: int) -> bytes:
        with self._lock:
            block = self._recent.pop((file, number), None)
            if block is None:
                self.reads += 1
                with open(file, "rb", buffering=0) as source:
                    source.seek(number * BLOCK_BYTES)
                    block = source.read(BLOCK_BYTES)
            self._recent[file, number] = block
            while len(self._recent) > self.most:
                self._recent.popitem(last=False)
        return block


class StreamedImages:
    """Images of files, decoded at every access.

    Args:
        files: image files of the table.
        rows: (n,) rows of the table, at least one; the image of index i is row ``rows[i]``.
        labels: (n,) class of each image, -1 for none.
        size: size in pixels.
        buffer: images that the order mixes, which decides how many blocks stay in memory.
        refuse: True if an unreadable image is an error. Otherwise the next image of the same class
            replaces it (the next unlabeled one, if it is unlabeled), always the same.
    """

    def __init__(
        self,
        files: ImageFiles,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        size: Size,
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
        # A block may be needed again while the order advances by twice its buffer.
        window = 2 * buffer * self._mean_bytes()
        self.blocks: Blocks = Blocks(2 + int(-(-window // BLOCK_BYTES)))

    @property
    def warning(self) -> str:
        """Warning about `skipped` in one line; empty if there are none."""
        if not self.skipped:
            return ""
        names = summarize([f"{path} ({fault})" for path, fault in self.skipped.items()])
        return f"{len(self.skipped)} unlabeled images can't be read; others replaced them: {names}"

    def take(self, indices: NDArray[np.int64]) -> Levels:
        """Return images by index, (n, C, H, W), freshly decoded.

        Raises:
            DataError: some can't be read, under `refuse`; or all of a class.
        """
        results = dict(zip(indices.tolist(), self._decode_all(indices.tolist()), strict=True))
        faults = {index: result for index, result in results.items() if isinstance(result, str)}
        if faults and self._refuse:
            lines = [f"can't read image {self._name(i)}: {text}" for i, text in faults.items()]
            raise DataError([*lines, _REPAIR])
        results |= {index: self._replacement(index, fault) for index, fault in faults.items()}
        form = self._files.pixels
        shape = len(indices), form.channels, *sides(self.size)
        images: Levels = np.empty(shape, dtype=form.dtype)
        for image, index in zip(images, indices.tolist(), strict=True):
            image[:] = np.asarray(results[index]).transpose(2, 0, 1)
        return images

    def _decode_all(self, indices: Sequence[int]) -> list[Levels | str]:
        paths = [self._path(index) for index in indices]
        return each_image(self._decode, paths, self._files.workers)

    def _decode(self, path: Path) -> Levels | str:
        member = tar_member(path)
        if member is None:
            return self._read(path)
        if member[2] > MOST_BYTES:
            return too_long(member[2])
        try:
            return self._read(self.blocks.read(*member))
        except OSError as error:
            return error.strerror or str(error)

    def _read(self, source: Path | bytes) -> Levels | str:
        return try_image(source, self.size, self._files.fit, self._files.pixels)

    def _replacement(self, index: int, fault: str) -> Levels:
        same_class = np.flatnonzero(self._labels == self._labels[index])
        self.skipped[self._name(index)] = fault
        for other in np.roll(same_class, -int(np.searchsorted(same_class, index)))[1:].tolist():
            (result,) = self._decode_all([other])
            if not isinstance(result, str):
                return result
            self.skipped[self._name(other)] = result
        raise DataError(
            f"can't read image {self._name(index)}: {fault}; nor any other of its class"
        )

    def _path(self, index: int) -> Path:
        return Path(self._files[int(self._rows[index])])

    def _name(self, index: int) -> str:
        return display_path(self._path(index))

    def _mean_bytes(self) -> float:
        """Return the bytes of all shards per image; 0 if there are none."""
        members = (tar_member(self._path(index)) for index in range(len(self._rows)))
        archives = {member[0] for member in members if member is not None}
        return sum(os.path.getsize(archive) for archive in archives) / len(self._rows)


_REPAIR = "repair the images and run `ssl-toolkit resume`, or start with --on-bad-image skip"


def buffered_order(sequence: Tensor, runs: Sequence[int], buffer: int) -> Order:
    """Return an order that reads run after run, from start to end, through a shuffle buffer.

    Each epoch draws the order of the runs. At most `buffer` indices that follow an index in its run
    come before it, so that reading from start to end never buffers more than that.

    Args:
        sequence: (n,) indices in the order of reading.
        runs: lengths of the runs, n in total.
        buffer: at least 1; 1 shuffles only the runs.
    """
    pieces = torch.split(sequence, [*runs])

    def order(generator: torch.Generator) -> Tensor:
        permutation = torch.randperm(len(pieces), generator=generator).tolist()
        read = torch.cat([pieces[run] for run in permutation])
        delays = torch.rand(len(read), generator=generator, dtype=torch.float64)
        # Index i leaves between i and i + buffer - 1, in the order of these times.
        times = torch.arange(len(read), dtype=torch.float64) + (buffer - 1) * delays
        return read[torch.argsort(times, stable=True)]

    return order


def reading_order(files: ImageFiles, rows: NDArray[np.int64], buffer: int) -> Order:
    """Return the order in which rows of a table are streamed; see `buffered_order`.

    The images of a shard are a run, and all separate files are another.

    Args:
        files: image files of the table.
        rows: (n,) rows; the order draws indices into them.
        buffer: images to mix.
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


def cache_all_but_unlabeled(
    table: ImageTable, split: Split, size: Size, *, refuse: bool, progress: Progress | None
) -> Split:
    """Decode labeled, validation and test images into a cache of their own.

    Args:
        table: table of files, none of which was opened.
        split: split of the table.
        size: size in pixels.
        refuse: True if unreadable images are an error; else they are removed from their part.
        progress: called while images are decoded.

    Raises:
        DataError: some can't be read; or a class loses all its labeled images.
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
    split, empty = without_rows(table, split, np.array([*faults], dtype=np.int64))
    if empty:
        raise DataError(f"no labeled image of {summarize(empty)} can be read")
    return replace(split, notes=(*split.notes, *skipped(table.keys, faults)))
