"""Load the images of a run into memory, map them from a cache, or stream them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.data.cache.image_files import files_of
from ssl_toolkit.data.feed.image_store import ImageTensorStore, channel_statistics, load_images
from ssl_toolkit.data.feed.streaming import StreamedImages, reading_order
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.batches import TrainingImages
from ssl_toolkit.engine.features import FeatureStore
from ssl_toolkit.interfaces import ChannelStatistics, ImageTable

_COUNTED = 2000
"""Streamed images whose channel statistics are taken."""


def training_images(
    table: ImageTable,
    split: Split,
    settings: ResolvedSettings,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> tuple[TrainingImages, NDArray[np.int64]]:
    """Return the images of all parts in one store, and their rows of the table, sorted.

    Under ``stream_buffer`` the unlabeled ones are in a store of their own, which decodes them as
    they come, and their rows are not among those returned.

    Args:
        table: the images.
        split: of the table.
        settings: resolved.
        device: device of the stores.
        progress: called while images are decoded.
    """
    parts = [split.labeled, split.unlabeled, split.validation, split.test]
    size, buffer = settings.image_size, settings.stream_buffer
    if buffer is not None:
        parts = [split.labeled, split.validation, split.test]
    rows = np.unique(np.concatenate(parts)).astype(np.int64)
    features = None if table.features is None else FeatureStore.of(table.features[rows], device)
    if features is None:
        store = load_images(table, rows, size, device, progress)
    else:  # images without memory, so that every row has an index
        blank = torch.zeros(1, 3, 1, 1, dtype=torch.uint8, device=device)
        store = ImageTensorStore(blank.expand(len(rows), -1, -1, -1))
    labeled, labels = store_rows(rows, split.labeled, table, device)
    if buffer is None or not len(split.unlabeled):
        unlabeled, hidden = store_rows(rows, split.unlabeled, table, device)
        images = TrainingImages(store, labeled, labels, store, unlabeled, hidden)
        return replace(images, features=features), rows
    files, streamed = files_of(table), split.unlabeled
    assert files is not None
    unlabeled = torch.arange(len(streamed), device=device)
    hidden = torch.from_numpy(table.labels[streamed]).to(device)
    streaming = StreamedImages(
        files,
        streamed,
        table.labels[streamed],
        size,
        buffer=buffer,
        refuse=settings.on_bad_image == "error",
    )
    pool = ImageTensorStore(streaming, np.arange(len(streamed)), device)
    order = reading_order(files, streamed, buffer)
    return TrainingImages(store, labeled, labels, pool, unlabeled, hidden, order), rows


def statistics(images: TrainingImages, seed: int) -> tuple[ChannelStatistics, ChannelStatistics]:
    """Return channel statistics of all training images; of streamed ones, of the first 2,000."""
    if images.pool is images.store:
        seen = torch.unique(torch.cat([images.labeled, images.unlabeled]))
        return channel_statistics(images.store, seen.cpu())
    first = images.stream(seed).take(0, min(_COUNTED, len(images.unlabeled)))
    return channel_statistics(images.store, images.labeled.cpu(), (images.pool, first))


def store_rows(
    rows: NDArray[np.int64], part: NDArray[np.int64], table: ImageTable, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the rows of the store of a part's images, and their labels."""
    found = torch.from_numpy(np.searchsorted(rows, part).astype(np.int64))
    return found.to(device), torch.from_numpy(table.labels[part]).to(device)
