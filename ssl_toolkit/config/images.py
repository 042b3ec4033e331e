"""The form of the images of a run: size in pixels, channels and bits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

Fit = Literal["crop", "pad"]
"""How images get the aspect ratio of the image size."""

Size = int | tuple[int, int]
"""Size of images in pixels: the side of square images, or (height, width)."""

LARGEST_SIDE = 4096


def sides(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


def area(size: Size) -> int:
    """Return the number of pixels."""
    height, width = sides(size)
    return height * width


def size_text(size: Size) -> str:
    """Return a size as users write it: ``64``, or ``48x64`` for height 48 and width 64."""
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"


def parse_size(value: Any) -> Any:
    """Return the `Size` of a number, a text such as ``48x64`` or a pair; None is left as it is.

    Raises:
        PydanticCustomError: a ValueError; it is none of these, or a side is out of range.
    """
    if value is None:
        return None
    parts = value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+)(?:\s*[x×]\s*(\d+))?\s*", value.lower())
        parts = () if match is None else [int(side) for side in match.groups() if side]
    elif type(value) is int:
        parts = [value]
    valid = isinstance(parts, list | tuple) and len(parts) in (1, 2)
    if not valid or not all(type(side) is int and 1 <= side <= LARGEST_SIDE for side in parts):
        raise PydanticCustomError(
            "image_size",
            f"must be a side in pixels, or HEIGHTxWIDTH such as 48x64, from 1 to {LARGEST_SIDE}",
        )
    height, width = parts[0], parts[-1]
    return height if height == width else (height, width)


def stored_size(size: Size) -> int | str:
    """Return a size as files contain it: a number for square images, else a text as ``48x64``."""
    return size if isinstance(size, int) else size_text(size)


ImageSize = Annotated[
    int | tuple[int, int],
    BeforeValidator(parse_size),
    PlainSerializer(stored_size),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]
"""A `Size` in settings and files; texts such as ``48x64`` are read and written."""


@dataclass(frozen=True)
class PixelFormat:
    """Channels and bits of images, after decoding."""

    channels: int = 3
    """Number of channels; 3 for RGB."""
    bits: int = 8
    """Bits of a channel: 8, stored as uint8, or 16, as uint16."""

    @property
    def dtype(self) -> str:
        """NumPy's name of the data type."""
        return f"uint{self.bits}"

    @property
    def white(self) -> int:
        """The highest level, which becomes 1.0."""
        return int(2**self.bits - 1)

    def __str__(self) -> str:
        plural = "" if self.channels == 1 else "s"
        return f"{self.channels} channel{plural} of {self.bits} bits"


RGB8 = PixelFormat()
"""RGB with 8 bits, the default."""
