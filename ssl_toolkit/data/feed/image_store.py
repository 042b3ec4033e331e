"""All images of a run as one uint8 tensor, and their channel statistics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_toolkit.data.cache.image_files import ImageFiles, files_of
from ssl_toolkit.data.feed.streaming import StreamedImages
from ssl_toolkit.interfaces import ChannelStatistics, ImageTable

LEAST_STD = 1 / 255
"""Floor of a channel's standard deviation: one gray level, so that a constant channel (std 0)
doesn't divide by zero when it is normalized."""

_BLOCK = 256  # images read or counted at a time; bounds the memory beside the store itself
_COPIED_BYTES = 128 * 2**20  # of decoded files, copied into the memory of the CPU
_MOVED_BYTES = 2 * 2**30  # of decoded files, moved to another device


class ImageTensorStore:
    """Images of one size, gathered by index.

    Args:
        images: (N, 3, H, W) uint8, RGB, on the device of the store; or decoded files, whose pixels
            stay where they are; or files that are decoded at every access.
        rows: (n,) rows of these files that the store holds, in its order.
        device: where `gather` answers when the pixels are not a tensor.
        size: side in pixels of the decoded files.

    Raises:
        ValueError: another dtype or shape.
    """

    def __init__(
        self,
        images: Tensor | ImageFiles | StreamedImages,
        rows: NDArray[np.int64] | None = None,
        device: torch.device | str = "cpu",
        size: int = 0,
    ) -> None:
        self._size = size
        if not isinstance(images, Tensor):
            assert rows is not None
            self._rows = rows
            self.device = torch.device(device)
        elif images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(
                f"images must be (N, 3, H, W) uint8, got {tuple(images.shape)} {images.dtype}"
            )
        else:
            self.device = images.device
        self.images = images

    def __len__(self) -> int:
        return len(self.images if isinstance(self.images, Tensor) else self._rows)

    @property
    def warning(self) -> str:
        """Which images could not be read since; empty for none."""
        return self.images.warning if isinstance(self.images, StreamedImages) else ""

    def pixels(self, indices: Tensor) -> Tensor:
        """Return images by their row of the store.

        Args:
            indices: (n,) int64, on any device.

        Returns:
            (n, 3, H, W) uint8 on the store's device, freshly allocated.
        """
        if isinstance(self.images, Tensor):
            return self.images.index_select(0, indices.to(self.device))  # whole rows at a time
        rows = self._rows[indices.cpu().numpy()]
        if isinstance(self.images, ImageFiles):
            taken = torch.from_numpy(self.images.take(rows, self._size))
        else:
            taken = torch.from_numpy(self.images.take(rows))
        if self.device.type == "cuda":  # a copy from pinned memory does not block the host
            return taken.pin_memory().to(self.device, non_blocking=True)
        return taken.to(self.device)

    def gather(self, indices: Tensor) -> Tensor:
        """`pixels` as float32 in [0, 1]."""
        return self.pixels(indices).to(torch.float32).div_(255)

    def moments(self, indices: Tensor) -> tuple[list[int], list[int]]:
        """Sums and sums of squares of the gray levels of each channel, over images; exact.

        Those of a cache are known: this reads no pixels.
        """
        if isinstance(self.images, ImageFiles):
            rows = self._rows[indices.cpu().numpy()]
            first, second = self.images.moments(rows, self._size).tolist()
            return first, second
        levels = torch.arange(256)
        first, second = [0] * 3, [0] * 3
        for start in range(0, len(indices), _BLOCK):
            images = self.pixels(indices[start : start + _BLOCK])
            for channel in range(3):
                counts = torch.bincount(images[:, channel].flatten(), minlength=256).cpu()
                first[channel] += int((counts * levels).sum())
                second[channel] += int((counts * levels**2).sum())
        return first, second


def load_images(
    table: ImageTable,
    rows: NDArray[np.int64],
    size: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> ImageTensorStore:
    """Read images of a table into a store.

    Files are decoded once, into a cache (`ImageFiles`). Its pixels are copied up to 128 MiB, or
    2 GiB onto another device than the CPU; beyond, the store gathers them from the mapped file.

    Args:
        table: where they come from.
        rows: (n,) rows of the table; image i of the store is row ``rows[i]``.
        size: side in pixels.
        device: device of the store; n · 3 · size² bytes there.
        progress: called as ``progress(done, total)`` while images are decoded.

    Raises:
        DataError: an image can't be read; names all of its block.
    """
    rows = np.asarray(rows, dtype=np.int64)
    device = torch.device(device)
    files = files_of(table)
    if files is not None:
        files.open(size, progress)
        progress = None  # what is left to do is a copy
        stays = files.in_memory(size) if device.type == "cpu" else False
        limit = _COPIED_BYTES if device.type == "cpu" else _MOVED_BYTES
        if files.has(rows, size) and (stays or len(rows) * 3 * size * size > limit):
            return ImageTensorStore(files, rows, device, size)
    images = torch.empty((len(rows), 3, size, size), dtype=torch.uint8, device=device)
    for start in range(0, len(rows), _BLOCK):
        block = torch.from_numpy(table.read(rows[start : start + _BLOCK], size))
        images[start : start + len(block)] = block.permute(0, 3, 1, 2).to(device)
        if progress is not None:
            progress(start + len(block), len(rows))
    return ImageTensorStore(images)


def channel_statistics(
    store: ImageTensorStore,
    rows: Tensor | NDArray[np.int64],
    *others: tuple[ImageTensorStore, Tensor],
) -> tuple[ChannelStatistics, ChannelStatistics]:
    """Mean and standard deviation of each channel over images of a store.

    Exact: sums of whole numbers. The mean is over all pixels of all
    the images; the standard deviation divides by their number (not by one less) and is at least
    `LEAST_STD`.

    Args:
        store: the images.
        rows: (n,) rows of the store, at least one.
        others: more stores of the same size, and rows of them.

    Returns:
        Mean and standard deviation in RGB order, of images in [0, 1].

    Raises:
        ValueError: `rows` is empty.
    """
    indices = torch.as_tensor(rows, dtype=torch.int64)
    if len(indices) == 0:
        raise ValueError("channel statistics need at least one image")
    parts = [(store, indices), *others]
    total = sum(len(indices) for _, indices in parts)
    total *= math.prod(store.pixels(indices[:1]).shape[2:])
    means, deviations = [], []
    moments = np.array([one.moments(indices) for one, indices in parts], dtype=object).sum(axis=0)
    for first, second in moments.T.tolist():
        means.append(first / total / 255)
        # Whole numbers up to the root: no cancellation between the two moments.
        deviations.append(max(math.sqrt(total * second - first * first) / total / 255, LEAST_STD))
    return _triple(means), _triple(deviations)


def _triple(values: list[float]) -> ChannelStatistics:
    red, green, blue = values
    return red, green, blue
