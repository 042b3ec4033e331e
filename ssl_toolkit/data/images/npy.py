"""Images that are files of one array, as ``np.save`` writes them."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.data.images.decoding import Unreadable
from ssl_toolkit.data.images.levels import Levels, convert_bits

SUFFIX = ".npy"
MAGIC = b"\x93NUMPY"
"""First bytes of such a file."""

_BAND = 2**22  # elements that are converted at a time
_PLANES = 16  # bytes per pixel for scaling a channel


class NpyImage:
    """The header of a file of one array, whose values are read later.

    Args:
        file: The file, open; it stays open until the values are read.
        length: Its number of bytes.

    Raises:
        Unreadable: The array is no image, or the file isn't as long as its header says.
        ValueError: The header is damaged.
    """

    def __init__(self, file: io.BufferedIOBase, length: int) -> None:
        formats = np.lib.format
        file.seek(0)
        version = formats.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise Unreadable(f"has version {version[0]}.{version[1]} of .npy; save it by np.save")
        first = version == (1, 0)
        read = formats.read_array_header_1_0 if first else formats.read_array_header_2_0
        self._shape, self._fortran, self._dtype = read(file)
        self._file, self._start = file, file.seek(0, io.SEEK_CUR)
        shape, dtype = self._shape, self._dtype
        if dtype.hasobject:
            raise Unreadable("holds Python objects; save numbers")
        if len(shape) not in (2, 3) or 0 in shape:
            raise Unreadable(f"an image is (H, W), (H, W, C) or (C, H, W), got {shape}")
        if dtype.kind != "f" and (dtype.kind != "u" or dtype.itemsize > 2):
            raise Unreadable(f"its dtype is {dtype}; expected uint8, uint16, or float in [0, 1]")
        found, expected = length - self._start, dtype.itemsize * math.prod(shape)
        if found != expected:
            raise Unreadable(f"damaged (has {found:,} bytes of values, its header {expected:,})")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, if the shorter of the first and last dimension are the channels."""
        shape = self._shape
        if len(shape) == 3 and shape[0] < shape[2]:
            return shape[2], shape[1]
        return shape[1], shape[0]

    @property
    def mode(self) -> str:
        """Pillow's name for such an image; RGB for any with several channels."""
        if len(self._shape) == 3 and 1 not in (self._shape[0], self._shape[2]):
            return "RGB"
        return "I;16" if self._dtype.kind == "u" and self._dtype.itemsize == 2 else "L"

    def room(self, pixels: PixelFormat) -> int:
        """Return the peak memory of reading it in a format, in bytes."""
        copy = 0 if self._dtype == pixels.dtype else pixels.bits // 8
        values = (self._dtype.itemsize + copy) * math.prod(self._shape)
        return values + _PLANES * math.prod(self.size)

    def levels(self, pixels: PixelFormat) -> Levels:
        """Return the values (H, W, C) with the bits of a format; C are those of the file.

        With three dimensions, the last one are the channels if their number fits the format, else
        the first one if its number does.

        Raises:
            Unreadable: Some floats are outside [0, 1].
        """
        self._file.seek(self._start)
        raw = np.frombuffer(self._file.read(), self._dtype)
        native = self._dtype.newbyteorder("=")
        converted = raw
        if native != pixels.dtype or native != self._dtype:
            converted = np.empty(len(raw), pixels.dtype)
            for start in range(0, len(raw), _BAND):
                part: NDArray[Any] = raw[start : start + _BAND].astype(native)
                if native.kind == "f" and not (part.min() >= 0 and part.max() <= 1):
                    raise Unreadable("floats must be in [0, 1]; divide 0..255 by 255")
                converted[start : start + _BAND] = convert_bits(part, pixels)
        levels = converted.reshape(self._shape, order="F" if self._fortran else "C")
        if levels.ndim == 2:
            return levels[..., None]
        first, last = (self._fits(self._shape[place], pixels.channels) for place in (0, 2))
        if last or not (first or self._shape[0] < self._shape[2]):
            return levels
        return np.moveaxis(levels, 0, 2)

    @staticmethod
    def _fits(given: int, channels: int) -> bool:
        return given == channels or {given, channels} <= {1, 3}
