"""The images of a run, and which of them are labeled.

Two numbers name an image: its *row* of the table (`ImageTable`, in ``data``), and its *index*
among the loaded images, which is all that training uses. `TrainingImages.indices_of` leads from
the one to the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_toolkit.config.images import Size, sides
from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.data.readers.image_files import ImageFiles, files_of
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.streaming import Order, StreamedImages, reading_order
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces import ChannelStatistics, ImageTable

_BLOCK = 256  # images read or counted at a time; bounds the memory beside the images themselves
_COPIED_BYTES = 128 * 2**20  # of decoded files, copied into the memory of the CPU
_WHITE = {torch.uint8: 255, torch.uint16: 65535}
_MOVED_BYTES = 2 * 2**30  # of decoded files, moved to another device


class ImageSource:
    """Images of one size, or features in their place, gathered by index.

    Args:
        images: (N, C, H, W) uint8 or uint16, or (N, D) float32 features, on the device of the
            source; or decoded files, whose pixels stay in their cache; or files that are decoded
            at every access.
        rows: (n,) rows of the files, by index.
        device: device of the result of `gather` if the images are not a tensor.
        size: size in pixels of the decoded files.

    Raises:
        ValueError: a tensor of another dtype or shape.
    """

    def __init__(
        self,
        images: Tensor | ImageFiles | StreamedImages,
        rows: NDArray[np.int64] | None = None,
        device: torch.device | str = "cpu",
        size: Size = 0,
    ) -> None:
        if isinstance(images, Tensor):
            features = images.dtype == torch.float32 and images.ndim == 2
            if not features and (images.dtype not in _WHITE or images.ndim != 4):
                raise ValueError(
                    "images must be (N, C, H, W) uint8 or uint16, got "
                    f"{tuple(images.shape)} {images.dtype}"
                )
            device = images.device
        self.images = images
        self.device: torch.device = torch.device(device)
        self._rows = np.empty(0, dtype=np.int64) if rows is None else rows
        self._size = size

    def __len__(self) -> int:
        return len(self.images if isinstance(self.images, Tensor) else self._rows)

    @property
    def warning(self) -> str:
        """Warning about images that could not be read so far; empty for none."""
        return self.images.warning if isinstance(self.images, StreamedImages) else ""

    def pixels(self, indices: Tensor) -> Tensor:
        """Return images as they are stored.

        Args:
            indices: (n,) int64, on any device.

        Returns:
            (n, C, H, W) uint8 or uint16, or (n, D) float32, on the device of the source, freshly
            allocated.
        """
        if isinstance(self.images, Tensor):
            rows = indices.to(self.device)
            if self.images.dtype == torch.uint16:  # not every device gathers it
                return self.images.view(torch.int16).index_select(0, rows).view(torch.uint16)
            return self.images.index_select(0, rows)  # whole rows at a time
        numbers = self._rows[indices.cpu().numpy()]
        if isinstance(self.images, ImageFiles):
            pixels = torch.from_numpy(self.images.take(numbers, self._size))
        else:
            pixels = torch.from_numpy(self.images.take(numbers))
        if self.device.type == "cuda":  # a copy from pinned memory does not block the host
            return pixels.pin_memory().to(self.device, non_blocking=True)
        return pixels.to(self.device)

    def gather(self, indices: Tensor) -> Tensor:
        """Return (n, C, H, W) images as float32 in [0, 1], or (n, D) features."""
        pixels = self.pixels(indices)
        return pixels if pixels.is_floating_point() else to_unit(pixels)

    def moments(self, indices: Tensor) -> tuple[list[int], list[int]]:
        """Return exact sums and sums of squares of the gray levels of each channel.

        A cache contains them for each image: this reads no pixels then.
        """
        if isinstance(self.images, ImageFiles):
            rows = self._rows[indices.cpu().numpy()]
            first, second = self.images.moments(rows, self._size).tolist()
            return first, second
        first, second = [], []
        for start in range(0, len(indices), _BLOCK):
            images = self.pixels(indices[start : start + _BLOCK])
            number, count = _WHITE[images.dtype] + 1, images.shape[1]
            first, second = first or [0] * count, second or [0] * count
            levels = torch.arange(number)
            for channel in range(count):
                values = images[:, channel].flatten()
                values = values if number == 256 else values.to(torch.int32)
                counts = torch.bincount(values, minlength=number).cpu()
                first[channel] += int((counts * levels).sum())
                second[channel] += int((counts * levels**2).sum())
        return first, second


def to_unit(pixels: Tensor) -> Tensor:
    """Return images of 8 or 16 bits as new float32 tensors in [0, 1]."""
    return pixels.to(torch.float32).div_(_WHITE[pixels.dtype])


def load_images(
    table: ImageTable,
    rows: NDArray[np.int64],
    size: Size,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> ImageSource:
    """Load images, or the features that a table contains in their place.

    Files are decoded once, into a cache (`ImageFiles`). Its pixels are copied up to 128 MiB, or
    2 GiB onto another device than the CPU; above, they are gathered from the mapped file.

    Args:
        table: table of the images.
        rows: (n,) rows of the table; the image of index i is row ``rows[i]``.
        size: size in pixels.
        device: device of the images.
        progress: called as ``progress(done, total)`` while images are decoded.

    Raises:
        DataError: an image can't be read; names all of its block.
    """
    rows = np.asarray(rows, dtype=np.int64)
    device = torch.device(device)
    if table.features is not None:
        return ImageSource(torch.from_numpy(np.array(table.features[rows])).to(device))
    files = files_of(table)
    if files is not None:
        files.open(size, progress)
        progress = None  # what is left to do is a copy
        stays = files.in_memory(size) if device.type == "cpu" else False
        limit = _COPIED_BYTES if device.type == "cpu" else _MOVED_BYTES
        if files.has(rows, size) and (stays or _bytes_of(table, len(rows), size) > limit):
            return ImageSource(files, rows, device, size)
    kind = torch.uint8 if table.pixels.bits == 8 else torch.uint16
    shape = len(rows), table.pixels.channels, *sides(size)
    images = torch.empty(shape, dtype=kind, device=device)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        # `verify` admits a pair of sides only where `read` takes one.
        pixels = table.read(part, size)  # type: ignore[arg-type]
        _check_pixels(pixels, (len(part), *sides(size), table.pixels.channels), table.pixels.bits)
        block = torch.from_numpy(pixels)
        images[start : start + len(block)] = block.permute(0, 3, 1, 2).to(device)
        if progress is not None:
            progress(start + len(block), len(rows))
    return ImageSource(images)


def _check_pixels(pixels: object, shape: tuple[int, ...], bits: int) -> None:
    """Refuse what `ImageTable.read` returned if it is no array of images (n, H, W, C)."""
    found = type(pixels).__name__
    if isinstance(pixels, np.ndarray):
        found = f"{pixels.dtype} of the shape {pixels.shape}"
    if found != (wanted := f"uint{bits} of the shape {shape}"):
        raise PluginError(f"read of the data set returned {found} instead of {wanted}")


def _bytes_of(table: ImageTable, count: int, size: Size) -> int:
    return count * table.pixels.channels * table.pixels.bits // 8 * math.prod(sides(size))


@dataclass(frozen=True)
class FeatureViews:
    """Features of augmented views of all training images, on the device of the run."""

    stacks: Mapping[str, Tensor]
    """(V, N, D) float32 by the name of an augmenter; V is 0 if the algorithm uses no such view."""
    labeled: Tensor
    """(n,) int64 positions of the labeled images among the N."""
    unlabeled: Tensor
    """(m,) int64 positions of the unlabeled ones."""


@dataclass(frozen=True)
class TrainingImages:
    """The loaded images of a run, and the indices of the labeled and unlabeled ones."""

    loaded: ImageSource
    labeled: Tensor
    """(n,) int64 indices, on the device of the run; likewise below."""
    labels: Tensor
    """(n,) int64 classes of the labeled images; (n, C) float32 under ``--task multilabel``."""
    unlabeled: Tensor
    """(m,) int64 indices; of `streamed`, if there is one."""
    hidden: Tensor
    """(m,) int64 true classes of the unlabeled images, -1 if unknown and `STRANGER` if of no class:
    for metrics, and for algorithms with ``uses_hidden_labels``; (m, C) float32 under ``--task
    multilabel``, nan if unknown."""
    rows: NDArray[np.int64]
    """Row of the table of each loaded image, ascending."""
    streamed: ImageSource | None = None
    """Unlabeled images that are decoded during training, not loaded; None for none."""
    order: Order | None = None
    """Draws an epoch of the unlabeled images; None for a uniform permutation."""
    features: ImageSource | None = None
    """Features of all loaded images, if a frozen backbone makes the pixels unnecessary."""
    feature_views: FeatureViews | None = None
    """Features of augmented views, from which batches are drawn in place of images."""

    @property
    def pool(self) -> ImageSource:
        """The source of the unlabeled images."""
        return self.loaded if self.streamed is None else self.streamed

    @property
    def inputs(self) -> ImageSource:
        """Features if there are any, else the loaded images: the input of an evaluation."""
        return self.loaded if self.features is None else self.features

    def indices_of(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the indices of loaded images by their rows of the table."""
        indices = np.searchsorted(self.rows, rows).astype(np.int64)
        return torch.from_numpy(indices).to(self.labels.device)


def load_training_images(
    table: ImageTable,
    split: Split,
    settings: ResolvedSettings,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> TrainingImages:
    """Load the images of all parts of a split, except the unlabeled ones under ``stream_buffer``.

    Args:
        table: table of the images.
        split: split of the table.
        settings: settings of the run.
        device: device of the images.
        progress: called while images are decoded.
    """

    def on_device(values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    parts = [split.labeled, split.validation, split.test]
    buffer = settings.stream_buffer if len(split.unlabeled) else None
    if buffer is None:
        parts.append(split.unlabeled)
    rows = np.unique(np.concatenate(parts)).astype(np.int64)
    loaded = load_images(table, rows, settings.image_size, device, progress)
    labels, hidden = table.labels[split.labeled], table.labels[split.unlabeled]
    unlabeled = np.searchsorted(rows, split.unlabeled)
    streamed = order = None
    if buffer is not None:
        files = files_of(table)
        assert files is not None
        unlabeled = np.arange(len(split.unlabeled))
        refuse = settings.on_bad_image == "error"
        images = StreamedImages(
            files, split.unlabeled, hidden, settings.image_size, buffer=buffer, refuse=refuse
        )
        streamed = ImageSource(images, unlabeled, device)
        order = reading_order(files, split.unlabeled, buffer)
    known = [on_device(labels), on_device(hidden)]
    if table.label_sets is not None:
        targets = (table.targets(part) for part in (split.labeled, split.unlabeled))
        known = [torch.from_numpy(part).to(device) for part in targets]
    return TrainingImages(
        loaded,
        labeled=on_device(np.searchsorted(rows, split.labeled)),
        labels=known[0],
        unlabeled=on_device(unlabeled),
        hidden=known[1],
        rows=rows,
        streamed=streamed,
        order=order,
        features=None if table.features is None else loaded,
    )


def channel_statistics(
    *parts: tuple[ImageSource, Tensor],
) -> tuple[ChannelStatistics, ChannelStatistics]:
    """Return mean and standard deviation of each channel, over images of one size.

    Exact: computed from sums of integers. The mean is over all pixels of all the images; the
    standard deviation divides by their number (not by one less) and is at least one gray level, so
    that a constant channel doesn't divide by zero when it is normalized.

    Args:
        parts: sources, and indices of their images; at least one image.

    Returns:
        Mean and standard deviation of each channel of images in [0, 1].

    Raises:
        ValueError: there are no images.
    """
    count = sum(len(indices) for _, indices in parts)
    if not count:
        raise ValueError("channel statistics need at least one image")
    source, indices = next(part for part in parts if len(part[1]))
    total = count * math.prod(source.pixels(indices[:1]).shape[2:])
    white = _WHITE[source.pixels(indices[:1]).dtype]
    least = 1 / white
    means, deviations = [], []
    moments = np.array([one.moments(indices) for one, indices in parts], dtype=object).sum(axis=0)
    for first, second in moments.T.tolist():
        means.append(first / total / white)
        # Integers up to the root: no cancellation between the two moments.
        deviations.append(max(math.sqrt(total * second - first * first) / total / white, least))
    return tuple(means), tuple(deviations)
