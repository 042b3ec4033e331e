"""Classify image files, one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.readers.listing import Listing, list_images
from ssl_toolkit.inference.model import Model, load_model


@dataclass(frozen=True)
class ImagePrediction:
    """The class of an image, or the reason why it could not be read."""

    path: str
    """The file, as it was named; in a folder below that folder."""
    label: str | None
    """The most probable class; None for an unreadable image."""
    confidence: float | None
    """Its probability."""
    probabilities: NDArray[np.float32] | None
    """(C,) of each class, in the order of `Model.classes`."""
    error: str = ""
    """Why the image can't be read; empty for none."""


def predict(
    model: Model | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    device: str = "auto",
    batch_size: int = 64,
    workers: int | None = None,
) -> Iterator[ImagePrediction]:
    """Classify image files and the image files in folders; memory does not grow with them.

    For images that are not files, see `Model.predict`.

    Args:
        model: a model, or the folder of a run or of an exported model.
        images: files and folders, or one of them.
        device: see `load_model`; ignored for a model.
        batch_size: images per forward pass; changes speed and memory, not the result.
        workers: threads that decode images, 0 for none; None for one per processor, at most 8.

    Returns:
        An iterator over the images, in their order.

    Raises:
        DataError: a file or folder is not found, or there is no image.
        ModelError: as `load_model`.
    """
    given = [images] if isinstance(images, str | os.PathLike) else images
    listing = list_images([os.fspath(image) for image in given])
    opened = model if isinstance(model, Model) else load_model(model, device)
    return classify(opened, listing, batch_size, workers)


def classify(
    model: Model, listing: Listing, batch_size: int, workers: int | None
) -> Iterator[ImagePrediction]:
    """Classify listed images; see `predict`.

    Args:
        model: the model.
        listing: the images.
        batch_size: as for `predict`.
        workers: as for `predict`.
    """
    rows = model.stream(listing.paths, batch_size, workers=workers)
    for name, row in zip(listing.names, rows, strict=True):
        if isinstance(row, str):
            yield ImagePrediction(name, None, None, None, row)
        else:
            best = int(row.argmax())
            yield ImagePrediction(name, model.classes[best], float(row[best]), row)
