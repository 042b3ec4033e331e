"""Images that are arrays in memory as an `ImageTable`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.images.files import fit_image
from ssl_toolkit.interfaces import ImageTable, Part


@dataclass(frozen=True)
class FittedRead:
    """The ``read`` of a table whose images are no files, in either layout."""

    read: Callable[[NDArray[np.int64], int, Fit], NDArray[np.uint8]]
    fit: Fit = "crop"

    def __call__(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """See `ImageTable.read`."""
        return self.read(rows, size, self.fit)


@dataclass(frozen=True)
class ImageArray:
    """Some images of a data set, in one array."""

    prefix: str
    """Start of their keys; a number follows."""
    part: Part | NDArray[np.str_]
    """One part for all, or (n,) one each."""
    images: NDArray[np.uint8]
    """(n, h, w) gray or (n, h, w, 3) RGB."""
    labels: ArrayLike
    """(n,) whole numbers, -1 for none."""


def array_table(
    classes: Sequence[str], groups: Sequence[ImageArray], notes: Sequence[str] = ()
) -> ImageTable:
    """Put arrays of images together; `digest` hashes the pixels.

    Args:
        classes: names of the labels 0, 1, ...
        groups: the images, in the order of the rows.
        notes: lines the user should see.
    """
    starts = np.cumsum([0, *(len(group.images) for group in groups)])

    def image(row: int) -> NDArray[np.uint8]:
        which = int(np.searchsorted(starts, row, side="right")) - 1
        return np.asarray(groups[which].images[row - starts[which]])

    def read(rows: NDArray[np.int64], size: int, fit: Fit) -> NDArray[np.uint8]:
        images = np.empty((len(rows), size, size, 3), dtype=np.uint8)
        for place, row in enumerate(rows.tolist()):
            images[place] = fit_image(Image.fromarray(image(row)), size, fit)
        return images

    def digest(row: int) -> str:
        return hashlib.sha256(image(row).tobytes()).hexdigest()

    return ImageTable(
        classes=tuple(classes),
        keys=tuple(
            f"{group.prefix}{number:0{len(str(len(group.images)))}d}"
            for group in groups
            for number in range(len(group.images))
        ),
        labels=np.concatenate([np.asarray(group.labels, dtype=np.int64) for group in groups]),
        parts=np.concatenate(
            [np.broadcast_to(np.asarray(group.part), len(group.images)) for group in groups]
        ),
        read=FittedRead(read),
        digest=digest,
        notes=tuple(notes),
    )
