"""Images read, verified and hashed in one go, each decoded once."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.images.decoding import Unreadable, to_upright
from ssl_toolkit.data.images.files import each_image, fit_image, open_content, opened_image

_SMALL_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Examined:
    """An image that could be read, and what its file is like."""

    pixels: NDArray[np.uint8]
    """(size, size, 3), as `read_image`."""
    digest: bytes
    """SHA-256 of the file, 32 bytes."""
    shape: tuple[int, int]
    """Width and height of the upright image."""
    mode: str
    """Pillow's name for the pixels of the file, such as RGB, L or I;16."""


def examine_images(
    paths: Sequence[Path], size: int, workers: int = 0, fit: Fit = "crop"
) -> list[Examined | str]:
    """Read, verify and hash images, each decoded once.

    Args:
        paths: the files.
        size: side in pixels.
        workers: threads that decode; 0 decodes in the calling one.
        fit: see `fit_image`.

    Returns:
        For each what was found, or the reason why it can't be read.
    """

    def examine(path: Path) -> Examined | str:
        try:
            content = _small_content(path)  # read once; what is wrong with a file is told below
            with opened_image(path if content is None else content) as image:
                mode = image.mode
                upright = to_upright(image)
                if content is None:
                    with open_content(path) as file:
                        digest = hashlib.file_digest(file, "sha256").digest()
                else:
                    digest = hashlib.sha256(content).digest()
                return Examined(fit_image(upright, size, fit), digest, upright.size, mode)
        except Unreadable as error:
            return str(error)

    return each_image(examine, paths, workers)


def _small_content(path: Path) -> bytes | None:
    """The bytes of a regular file that memory has room for, else None."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _SMALL_BYTES:
            return None
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return None
