"""All pictures of a run as one uint8 tensor, and their channel statistics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_toolkit.interfaces import ChannelStatistics, ImageTable

LEAST_STD = 1 / 255
"""Floor of a channel's standard deviation: one grey level, so that a constant channel (std 0)
doesn't divide by zero when it is normalised."""

_BLOCK = 256  # pictures read or counted at a time; bounds the memory beside the store itself


class ImageStore:
    """Pictures of one size on one device, gathered by index.

    Args:
        images: (N, 3, H, W) uint8, RGB.

    Raises:
        ValueError: another dtype or shape.
    """

    def __init__(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(
                f"images must be (N, 3, H, W) uint8, got {tuple(images.shape)} {images.dtype}"
            )
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        """Where the pictures lie and where `gather` answers."""
        return self.images.device

    def gather(self, indices: Tensor) -> Tensor:
        """Pictures by their place in the store.

        Args:
            indices: (n,) int64, on any device.

        Returns:
            (n, 3, H, W) float32 in [0, 1] on the store's device, freshly allocated.
        """
        return self.images[indices.to(self.device)].to(torch.float32).div_(255)


def build_store(
    table: ImageTable,
    rows: NDArray[np.int64],
    size: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> ImageStore:
    """Read pictures of a table into a store.

    Args:
        table: where they come from.
        rows: (n,) rows of the table; picture i of the store is row ``rows[i]``.
        size: side in pixels.
        device: where the store lies; n · 3 · size² bytes there.
        progress: called as ``progress(done, total)`` after every block.

    Raises:
        DataError: a picture can't be read any more; names all of its block.
    """
    rows = np.asarray(rows, dtype=np.int64)
    images = torch.empty((len(rows), 3, size, size), dtype=torch.uint8, device=device)
    for start in range(0, len(rows), _BLOCK):
        block = torch.from_numpy(table.read(rows[start : start + _BLOCK], size))
        images[start : start + len(block)] = block.permute(0, 3, 1, 2).to(device)
        if progress is not None:
            progress(start + len(block), len(rows))
    return ImageStore(images)


def channel_statistics(
    store: ImageStore, rows: Tensor | NDArray[np.int64]
) -> tuple[ChannelStatistics, ChannelStatistics]:
    """Mean and standard deviation of each channel over pictures of a store.

    Exact: counts of the 256 grey levels, summed as integers. The mean is over all pixels of all
    the pictures; the standard deviation divides by their number (not by one less) and is at least
    `LEAST_STD`.

    Args:
        store: the pictures.
        rows: (n,) places in the store, at least one.

    Returns:
        Mean and standard deviation in RGB order, of images in [0, 1].

    Raises:
        ValueError: `rows` is empty.
    """
    indices = torch.as_tensor(rows, dtype=torch.int64)
    if len(indices) == 0:
        raise ValueError("channel statistics need at least one picture")
    counts = [[0] * 256 for _ in range(3)]
    for start in range(0, len(indices), _BLOCK):
        images = store.images[indices[start : start + _BLOCK].to(store.device)]
        for channel, levels in enumerate(counts):
            found = torch.bincount(images[:, channel].flatten(), minlength=256).tolist()
            counts[channel] = [a + b for a, b in zip(levels, found, strict=True)]
    means, deviations = [], []
    for levels in counts:
        total = sum(levels)
        first = sum(level * count for level, count in enumerate(levels))
        second = sum(level * level * count for level, count in enumerate(levels))
        means.append(first / total / 255)
        # Whole numbers up to the root: no cancellation between the two moments.
        deviations.append(max(math.sqrt(total * second - first * first) / total / 255, LEAST_STD))
    return _triple(means), _triple(deviations)


def _triple(values: list[float]) -> ChannelStatistics:
    red, green, blue = values
    return red, green, blue
