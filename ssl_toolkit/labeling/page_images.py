"""Images as a browser shows them: decoded as for training, encoded again as PNG or JPEG."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from ssl_toolkit.config.images import RGB8
from ssl_toolkit.data.images.decoding import Unreadable, to_upright
from ssl_toolkit.data.images.files import opened_image
from ssl_toolkit.data.images.levels import for_display
from ssl_toolkit.data.images.npy import NpyImage
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable

LONGEST = 1600
"""Longest side in pixels; larger images are scaled down."""

_LOSSLESS = 512  # longest side of images that are sent as PNG
_ARRAY_SIZE = 256  # side at which images that are no files are read


def encoded_image(table: ImageTable, row: int) -> tuple[str, bytes]:
    """Return media type and content of an image; inside `pillow_muted`, from any thread.

    Raises:
        DataError: It can't be read.
    """
    if table.files is None:
        image = Image.fromarray(for_display(table.read(np.array([row]), _ARRAY_SIZE))[0])
    else:
        try:
            with opened_image(Path(table.files[row])) as (opened, _):
                if isinstance(opened, NpyImage):
                    image = Image.fromarray(for_display(opened.levels(RGB8)))
                else:
                    image = to_upright(opened)
                image.thumbnail((LONGEST, LONGEST), Image.Resampling.BICUBIC)
        except Unreadable as error:
            raise DataError(str(error)) from None
    file = io.BytesIO()
    if max(image.size) <= _LOSSLESS:
        # A new image: neither profile nor comments of the file are sent.
        Image.frombytes(image.mode, image.size, image.tobytes()).save(file, "PNG")
        return "image/png", file.getvalue()
    Image.frombytes(image.mode, image.size, image.tobytes()).save(file, "JPEG", quality=90)
    return "image/jpeg", file.getvalue()
