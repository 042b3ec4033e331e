"""The form of the images of a table: how they get the image size, channels and bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ssl_toolkit.config.images import RGB8, Fit, PixelFormat, Size
from ssl_toolkit.data.images.decoding import WIDE
from ssl_toolkit.data.readers.arrays import FittedRead
from ssl_toolkit.data.readers.image_files import ImageFiles, open_files
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable


def format_notes(files: ImageFiles, size: Size) -> Iterator[str]:
    """Yield notes on channels and bits of decoded images that other settings would keep.

    Args:
        files: The images, opened at the size.
        size: Size in pixels.
    """
    modes, pixels = files.modes(size), files.pixels
    if any(mode.endswith("+") for mode in modes) and pixels.channels in (1, 3):
        yield (
            "of images with several pages the first is read; --channels N makes channels of N gray "
            "pages"
        )
    modes = frozenset(mode.removesuffix("+") for mode in modes)
    if pixels.channels == RGB8.channels and modes <= {"1", "L", *WIDE}:
        yield "all images are gray and get three equal channels; --channels 1 keeps one"
    if pixels.bits == RGB8.bits and not modes.isdisjoint(WIDE):
        yield "images with 16 bits are read with 8; --bits 16 keeps all"


def lay_out(
    table: ImageTable, fit: Fit, workers: int = 0, pixels: PixelFormat = RGB8
) -> ImageTable:
    """Return the table with its images in this form; see `fit_image`.

    Args:
        table: Images of a data set.
        fit: How they get the image size.
        workers: Threads that decode image files; 0 decodes in the calling one.
        pixels: Channels and bits.

    Raises:
        DataError: The data set's own ``read`` gives another form.
    """
    if table.files is not None:
        return open_files(table, workers, fit, pixels)
    if isinstance(table.read, FittedRead):
        return replace(table, read=replace(table.read, fit=fit, pixels=pixels), pixels=pixels)
    if table.features is not None:
        return table
    if fit != "crop":
        raise DataError(f"--fit {fit}: the data set makes its images square itself; leave it out")
    if pixels != table.pixels:
        raise DataError(
            f"--channels {pixels.channels} --bits {pixels.bits}: the data set gives images with "
            f"{table.pixels} itself; leave them out"
        )
    return table
