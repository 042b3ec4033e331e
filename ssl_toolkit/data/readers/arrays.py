"""Images that are arrays in memory as an `ImageTable`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from ssl_toolkit.config.images import RGB8, Fit, PixelFormat, Size, sides
from ssl_toolkit.data.images.files import fit_item, pillow_muted, try_image
from ssl_toolkit.data.images.levels import Levels
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, SplitName


@dataclass(frozen=True)
class FittedRead:
    """The ``read`` of a table whose images are no files, in any form."""

    read: Callable[[NDArray[np.int64], Size, Fit, PixelFormat], Levels]
    fit: Fit = "crop"
    pixels: PixelFormat = RGB8

    def __call__(self, rows: NDArray[np.int64], size: Size) -> Levels:
        """See `ImageTable.read`."""
        return self.read(rows, size, self.fit, self.pixels)


@dataclass(frozen=True)
class ImageArray:
    """Some images of a data set, in one array."""

    prefix: str
    """Start of their keys; a number follows."""
    split: SplitName | NDArray[np.str_]
    """One split for all, or (n,) one each."""
    images: NDArray[Any] | Sequence[Image.Image]
    """(n, h, w) gray or (n, h, w, C), uint8, uint16 or float in [0, 1]; or n images, each decoded
    when it is read."""
    labels: ArrayLike
    """(n,) whole numbers, -1 for none."""


def array_table(
    classes: Sequence[str], groups: Sequence[ImageArray], notes: Sequence[str] = ()
) -> ImageTable:
    """Concatenate arrays of images into a table; `digest` hashes the pixels.

    `ImageTable.read` raises `DataError`, with one message per image that can't be decoded.

    Args:
        classes: Names of the labels 0, 1, ...
        groups: The images, in the order of the rows.
        notes: Lines the user should see.
    """
    starts = np.cumsum([0, *(len(group.images) for group in groups)])
    keys = tuple(
        f"{group.prefix}{number:0{len(str(len(group.images)))}d}"
        for group in groups
        for number in range(len(group.images))
    )

    def image(row: int) -> NDArray[Any] | Image.Image:
        which = int(np.searchsorted(starts, row, side="right")) - 1
        return groups[which].images[row - int(starts[which])]

    def read(rows: NDArray[np.int64], size: Size, fit: Fit, form: PixelFormat) -> Levels:
        images = np.empty((len(rows), *sides(size), form.channels), dtype=form.dtype)
        errors = []
        with pillow_muted():
            for i, row in enumerate(rows.tolist()):
                try:
                    item = image(row)
                    if isinstance(item, np.ndarray):
                        images[i] = fit_item(item, size, fit, form)
                        continue
                    pixels = try_image(item, size, fit, form)
                except Exception as error:  # a data set decodes with any library
                    pixels = " ".join(str(error).split()) or type(error).__name__
                if isinstance(pixels, str):
                    errors.append(f"can't read image {keys[row]}: {pixels}")
                else:
                    images[i] = pixels
        if errors:
            raise DataError(errors)
        return images

    def digest(row: int) -> str:
        item = image(row)
        shape = b"" if isinstance(item, np.ndarray) else f"{item.mode} {item.size}".encode()
        return hashlib.sha256(shape + item.tobytes()).hexdigest()

    return ImageTable(
        classes=tuple(classes),
        keys=keys,
        labels=np.concatenate([np.asarray(group.labels, dtype=np.int64) for group in groups]),
        splits=np.concatenate(
            [np.broadcast_to(np.asarray(group.split), len(group.images)) for group in groups]
        ),
        read=FittedRead(read),
        digest=digest,
        notes=tuple(notes),
    )
