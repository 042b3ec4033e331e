"""A confusion matrix as an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ssl_toolkit.text import shorten

MOST_NAMED = 60
"""Maximum number of classes with names at rows and columns; with more, cells have a few pixels."""

_LONGEST = 18
_WHITE, _BLACK, _FULL = (255, 255, 255), (0, 0, 0), (8, 48, 107)


def draw_confusion(matrix: NDArray[np.int64], classes: Sequence[str]) -> Image.Image:
    """Draw true classes as rows and predicted ones as columns.

    The darker a cell, the larger its share of the row; white is 0. Cells show their counts if
    there is room. Names of more than 18 characters are truncated. Letters missing from
    Pillow's font, such as Chinese ones, appear as boxes.

    Args:
        matrix: (C, C) counts, as returned by `confusion_matrix`.
        classes: C names.

    Returns:
        An RGB image with about 30 C pixels per side, 4 C beyond `MOST_NAMED` classes.
    """
    number = len(classes)
    named = number <= MOST_NAMED
    cell = max(26, 10 * len(str(matrix.max()))) if named else max(1, min(4, 4000 // number))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    colors = np.round(
        np.array(_WHITE) + shares[..., None] * (np.array(_FULL) - np.array(_WHITE))
    ).astype(np.uint8)
    grid = Image.fromarray(colors).resize((number * cell,) * 2, Image.Resampling.NEAREST)

    font = ImageFont.load_default(12)
    names = [shorten(name, _LONGEST) for name in classes]
    margin = 30 + (round(max(font.getlength(name) for name in names)) if named else 0)
    image = Image.new("RGB", (margin + grid.width + 20, margin + grid.height + 20), _WHITE)
    image.paste(grid, (margin, margin))
    draw = ImageDraw.Draw(image)
    draw.rectangle(
        (margin - 1, margin - 1, margin + grid.width, margin + grid.height), outline=_BLACK
    )
    middle = margin + grid.width // 2
    draw.text((middle, 12), "predicted", _BLACK, font, anchor="mm")
    _sideways(image, "true", font, (12, middle))
    if named:
        for index, name in enumerate(names):
            center = margin + index * cell + cell // 2
            draw.text((margin - 6, center), name, _BLACK, font, anchor="rm")
            _sideways(image, name, font, (center, margin - 6), upward=True)
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                at = margin + column * cell + cell // 2, margin + row * cell + cell // 2
                ink = _WHITE if shares[row, column] > 0.5 else _BLACK
                draw.text(at, str(count), ink, font, anchor="mm")
    return image


def _sideways(
    image: Image.Image,
    text: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    at: tuple[int, int],
    *,
    upward: bool = False,
) -> None:
    """Draw text rotated by 90 degrees, centered on a point, or starting there and going up."""
    width = round(font.getlength(text)) + 2
    strip = Image.new("RGB", (width, 16), _WHITE)
    ImageDraw.Draw(strip).text((1, 8), text, _BLACK, font, anchor="lm")
    rotated = strip.rotate(90, expand=True)
    image.paste(rotated, (at[0] - 8, at[1] - (width if upward else width // 2)))
