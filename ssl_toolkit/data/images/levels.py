"""From a decoded image to an array with any number of channels, of 8 or 16 bits.

RGB with 8 bits, the default, is left to Pillow (`decoding.to_upright`).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.data.images.decoding import (
    WIDE,
    Unreadable,
    decode,
    orientation_of,
    oriented,
    scaling,
    to_upright,
)

Levels = NDArray[np.unsignedinteger[Any]]
"""Pixels of 8 or 16 bits; of an image (H, W, C)."""

_ARRAYS = "store the images as arrays (.npy or .npz)"
_BITS, _EXTRA_SAMPLES = 258, 338  # tags of TIFF
_OPAQUE = {2: "LA", 4: "RGBA"}
_TURNS: dict[int, Callable[[Any], Any]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a),
}
"""Operations by EXIF orientation, for arrays that Pillow has no mode for."""


def to_levels(image: Image.Image, pixels: PixelFormat) -> Levels:
    """Return an image as an upright array (H, W, C).

    Args:
        image: As for `decoding.decode`.
        pixels: C channels: 1 for gray, 2 for gray and alpha, 3 for RGB on white, 4 for RGB and
            alpha. A TIFF with C pages of gray images gives any other number, a channel a page.

    Raises:
        As `decoding.decode`; Unreadable also if the file has no such channels.
    """
    channels = pixels.channels
    if channels not in (1, 3) and (pages := _pages(image)) > 1:
        return _stacked(image, pages, pixels)
    if channels > 4:
        raise Unreadable(
            f"has {len(image.getbands())} channels, not {channels}; {_ARRAYS}, or a TIFF with "
            "a gray page for each channel"
        )
    if pixels.bits == 16:
        return convert_channels(_deep(image), channels)
    if channels in (1, 3):
        upright = to_upright(image).convert("L" if channels == 1 else "RGB")
        return _with_channels(np.asarray(upright))
    _check_extra(image)
    return np.asarray(_with_alpha(image).convert(_OPAQUE[channels]))


def convert_channels(levels: Levels, channels: int) -> Levels:
    """Return an array (H, W, S) with another number of channels.

    Gray becomes three equal channels, and RGB gray by the weights of ITU-R 601, rounded as Pillow
    does. An alpha channel, the last of 2 or 4, blends the image with white, or is opaque if the
    array has none.

    Raises:
        Unreadable: S is neither `channels` nor 1 to 4.
    """
    given = levels.shape[2]
    if given == channels:
        return levels
    if max(given, channels) > 4:
        raise Unreadable(f"has {given} channels, not {channels}; set --channels {given}")
    color, alpha = levels, None
    white = np.iinfo(levels.dtype).max
    if given in (2, 4):
        color, alpha = levels[..., :-1], levels[..., -1:]
    if channels in (1, 3) and alpha is not None:
        share = alpha.astype(np.float64) / white
        color = np.rint(color * share + white * (1 - share)).astype(levels.dtype)
    wanted = 1 if channels < 3 else 3
    if color.shape[2] < wanted:
        color = np.repeat(color, 3, axis=2)
    elif color.shape[2] > wanted:
        weights = np.array([19595, 38470, 7471], dtype=np.uint64)  # of 2 ** 16
        gray = (color.astype(np.uint64) @ weights + 2**15) >> np.uint64(16)
        color = gray[..., None].astype(levels.dtype)
    if channels in (1, 3):
        return color
    if alpha is None:
        alpha = np.full((*color.shape[:2], 1), white, levels.dtype)
    return np.concatenate([color, alpha], axis=2)


def convert_bits(levels: NDArray[Any], pixels: PixelFormat) -> NDArray[Any]:
    """Return levels of 8 or 16 bits, or floats in [0, 1], with the bits of a format."""
    if levels.dtype == pixels.dtype:
        return levels
    if levels.dtype.kind == "f":
        rounded: NDArray[Any] = np.rint(levels * pixels.white)
        return rounded.astype(pixels.dtype)
    if pixels.bits == 16:
        return levels.astype(np.uint16) * np.uint16(257)
    wide: NDArray[Any] = levels.astype(np.uint32) * 255 + 32767
    return (wide // 65535).astype(np.uint8)


def for_display(levels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return images (N, H, W, C) of any format as RGB with 8 bits, to look at.

    One or two channels are shown as gray; of more, the first three.
    """
    shown = convert_bits(levels[..., : 1 if levels.shape[-1] < 3 else 3], PixelFormat())
    return np.repeat(shown, 3, axis=-1) if shown.shape[-1] == 1 else shown


def _pages(image: Image.Image) -> int:
    return getattr(image, "n_frames", 1) if image.format == "TIFF" else 1


def _stacked(image: Image.Image, pages: int, pixels: PixelFormat) -> Levels:
    """Return the pages of a TIFF, each a gray image, as channels."""
    if pages != pixels.channels:
        raise Unreadable(f"has {pages} pages, not {pixels.channels} as --channels says")
    channels, page = [], PixelFormat(1, pixels.bits)
    for number in range(pages):
        image.seek(number)
        if image.mode not in ("1", "L", *WIDE):
            raise Unreadable(f"page {number} has mode {image.mode}, not gray")
        channels.append(to_levels(image, page))
    if len({channel.shape for channel in channels}) > 1:
        raise Unreadable("its pages have different sizes")
    return np.concatenate(channels, axis=2)


def _deep(image: Image.Image) -> Levels:
    """Return (H, W, 1 to 4) uint16; images of 8 bits are scaled."""
    _check_extra(image)
    _check_color_depth(image)
    if image.format == "PNG" and image.mode not in WIDE and "16B" in str(_arguments(image)):
        return _deep_png(image)
    scale = scaling(image, 65535)
    upright = oriented(image, decode(image))
    if upright.mode in WIDE:
        return _with_channels(scale(upright))
    mode = "RGBA" if upright.has_transparency_data else "L" if upright.mode in ("1", "L") else "RGB"
    plain = _with_alpha(image) if mode == "RGBA" else upright.convert(mode)
    return _with_channels(np.asarray(plain).astype(np.uint16) * np.uint16(257))


def _deep_png(image: Image.Image) -> Levels:
    """Decode a PNG with several channels of 16 bits, of which Pillow reads the upper 8."""
    from torchvision.io import decode_png

    file: Any = image.fp  # type: ignore[attr-defined]
    decode(image)  # compares checksums
    file.seek(0)
    content = file.getvalue() if isinstance(file, io.BytesIO) else file.read()
    tensor = decode_png(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    levels: Levels = tensor.permute(1, 2, 0).numpy()
    turn = _TURNS.get(orientation_of(image))
    return levels if turn is None else np.ascontiguousarray(turn(levels))


def _check_color_depth(image: Any) -> None:
    """Raise if Pillow would read the upper 8 bits only."""
    if image.mode in WIDE or image.format not in ("TIFF", "PPM"):
        return
    deep = image.format == "TIFF" and max(image.tag_v2.get(_BITS, (8,))) > 8
    if image.format == "PPM":
        deep = any(isinstance(value, int) and value > 255 for value in _arguments(image))
    if deep:
        raise Unreadable(f"Pillow reads only 8 bits of color in this {image.format}; {_ARRAYS}")


def _arguments(image: Any) -> tuple[Any, ...]:
    """Return the arguments of Pillow's decoder; of a PPM, the mode and the maximum value."""
    arguments = image.tile[0][3] if image.tile else ()
    return arguments if isinstance(arguments, tuple) else (arguments,)


def _check_extra(image: Any) -> None:
    """Raise if a TIFF has a further channel that isn't alpha, which Pillow drops."""
    if image.format == "TIFF" and 0 in image.tag_v2.get(_EXTRA_SAMPLES, ()):
        raise Unreadable(f"its last channel isn't alpha, and Pillow drops it; {_ARRAYS}")


def _with_alpha(image: Image.Image) -> Image.Image:
    """Return an image as RGBA, upright and not premultiplied."""
    upright = oriented(image, decode(image))
    if upright.mode in WIDE:
        return to_upright(image).convert("RGBA")
    if upright.mode == "La":
        upright = upright.convert("LA")
    return upright.convert("RGBA")


def _with_channels(levels: NDArray[Any]) -> Levels:
    return levels[..., None] if levels.ndim == 2 else levels
