"""Decode an image opened by Pillow to upright 8-bit pixels, or report why it is unreadable.

docs/reference/image-formats.md has a table of all formats and modes.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from threading import Condition
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, _imaging

from ssl_toolkit.data.images.kinds import RAW, way_out

# glibc returns freed blocks of more than 32 MiB to the system, but caches smaller ones per thread,
# so that a few large images in succession would occupy the memory of all of them.
_imaging.set_block_size(64 * 2**20)

_BAND = 2**22  # maximum number of pixels to convert at a time
WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Pillow's modes of gray images with 16 bits."""
_COLORS = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}  # simplejpeg's names by Pillow's modes
_WITHOUT_RGB = {"RGBa": "RGBA", "La": "LA"}  # modes that Pillow converts to RGB via another
_SAVE = "save it with 8 or 16 bits"

# Tags of TIFF: https://www.loc.gov/preservation/digital/formats/content/tiff_tags.shtml
_BITS, _COMPRESSION, _PHOTOMETRIC, _SAMPLES, _ROWS = 258, 259, 262, 277, 278
_TILE_SIZE, _SAMPLE_FORMAT, _JPEG_TABLES, _DNG_VERSION = (322, 323), 339, 347, 50706
_STRIPS, _TILES = (273, 279), (324, 325)  # their offsets and lengths


class Unreadable(Exception):
    """A file can't be decoded; the message is the reason."""


class Room:
    """A memory budget that decoding threads share; a request waits until enough is free.

    Args:
        most: Size of the budget in bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = most
        self._changed = Condition()

    @contextlib.contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Reserve an amount of bytes.

        Raises:
            Unreadable: The amount exceeds the budget.
        """
        if amount > self.most:
            raise Unreadable(
                f"would take {amount / 1e6:,.0f} MB to decode, more than the "
                f"{self.most / 1e6:,.0f} MB that an image may; make it smaller"
            )
        with self._changed:
            self._changed.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()


# Enough for nine bytes per pixel at Pillow's limit on pixels, and the encoded image.
ROOM = Room(800 * 2**20)


def room_for(image: Image.Image, length: int, levels: int = 0) -> int:
    """Return the peak memory of decoding in bytes, from the header; measured, and rounded up.

    Args:
        image: Opened but not decoded.
        length: Number of encoded bytes.
        levels: Bytes per pixel of the array that it becomes, 0 for none.
    """
    return _decoded_room(image, length) + 2 * levels * image.width * image.height


def _decoded_room(image: Image.Image, length: int) -> int:
    pixels = image.width * image.height
    per_pixel = 8  # at most four bytes in Pillow, and four more as RGB
    if image.format in ("JPEG", "MPO"):
        per_pixel = 12 if image.mode == "CMYK" else 9 if "progressive" in image.info else 8
        return per_pixel * pixels + length
    if image.format in ("WEBP", "AVIF"):
        return 16 * pixels + length
    if image.format == "TIFF":
        return max(per_pixel * pixels, 4 * pixels + _strip_bytes(image))
    return per_pixel * pixels


def decode(image: Image.Image) -> Image.Image:
    """Decode an image completely; warnings of the decoder are errors too.

    Args:
        image: Opened by Pillow, its file still open; or any image in memory.

    Returns:
        The pixels, in the mode of the file; `image` itself except for JPEGs.

    Raises:
        Unreadable: It is damaged, or its pixels have no agreed range.
        Exception: Any exception of Pillow, on damaged data.
    """
    _check_range(image)
    file: Any = getattr(image, "fp", None)
    if file is not None:
        if image.format in ("JPEG", "MPO") and image.mode in _COLORS:
            return _decode_jpeg(image, file)
        position = file.seek(0, io.SEEK_CUR)
        if image.format == "PNG":  # Pillow doesn't compare the checksums of pixels
            file.seek(8)
            PngImagePlugin.ChunkStream(file).verify()
        elif image.format == "TIFF":
            _check_strips(image, file)
        elif image.format in ("WEBP", "AVIF"):
            _check_tail(image, file)
        file.seek(position)
    image.load()
    return image


def to_upright(image: Image.Image) -> Image.Image:
    """Return an image in mode RGB or L, rotated by its EXIF orientation, on a white background.

    Args:
        image: As for `decode`.

    Raises:
        As `decode`.
    """
    upright = oriented(image, decode(image))
    if upright.mode in ("RGB", "L") and not upright.has_transparency_data:
        return upright
    if upright.mode in WIDE:
        scale = scaling(image)
        return _in_bands(upright, "L", lambda band: Image.fromarray(scale(band)))
    return _in_bands(upright, "RGB", _on_white)


def oriented(image: Image.Image, decoded: Image.Image) -> Image.Image:
    """Return the result of `decode`, rotated by the EXIF orientation."""
    # Only EXIF parsing can fail here: the pixels are loaded.
    with contextlib.suppress(Exception):
        if orientation_of(image) != 1:
            return ImageOps.exif_transpose(decoded)
    return decoded


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 for an upright image or a damaged EXIF block."""
    with contextlib.suppress(Exception):
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    return 1


# --- JPEG -----------------------------------------------------------------------------------------


def _decode_jpeg(image: Image.Image, file: Any) -> Image.Image:
    """Decode with a decoder that reports libjpeg's warnings, which Pillow ignores."""
    file.seek(0)
    content = file.getvalue() if isinstance(file, io.BytesIO) else file.read()
    color = _COLORS[image.mode]
    try:
        levels = simplejpeg.decode_jpeg(content, color)
    except ValueError:
        # Decode again without metadata: what is wrong with it, such as a truncated profile, doesn't
        # affect the pixels, but only the first warning is reported.
        try:
            simplejpeg.decode_jpeg(_without_metadata(content), color, min_height=1, min_width=1)
        except ValueError as error:
            raise Unreadable(damage(error)) from None
        image.load()
        return image
    if image.mode == "CMYK":
        np.invert(levels, out=levels)  # inverted by convention, since Adobe's writer
    decoded = Image.fromarray(levels[..., 0] if image.mode == "L" else levels, image.mode)
    decoded.info = dict(image.info)
    return decoded


def _without_metadata(content: bytes) -> bytes:
    """Return a JPEG without its application segments and comments."""
    segments, position = [content[:2]], 2
    while content[position : position + 1] == b"\xff" and content[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(content[position + 2 : position + 4], "big")
        if content[position + 1] != 0xFE and content[position + 1] & 0xF0 != 0xE0:
            segments.append(content[position:end])
        position = end
    return b"".join([*segments, content[position:]])


# --- faults that decoders of other formats don't report -------------------------------------------


def _check_tail(image: Image.Image, file: Any) -> None:
    """Raise if a file ends in zeros: space that a download allocated but did not fill.

    WebP and AVIF have no checksum, and zeros are valid for their decoders. Images of one color end
    in few zeros, about one per 10,000 pixels.
    """
    file.seek(0)
    head = file.read(12)
    length = int.from_bytes(head[4:8], "little") + 8 if image.format == "WEBP" else file.seek(0, 2)
    most = 64 + image.width * image.height // 2000
    file.seek(max(0, length - most))
    if not any(file.read(most)) and length > most:
        raise Unreadable(f"damaged (its last {most:,} bytes or more are zero)")


def _check_strips(image: Any, file: Any) -> None:
    """Raise if a TIFF has compressed strips or tiles that end in zeros, or damaged JPEGs."""
    tags = image.tag_v2
    if _DNG_VERSION in tags:
        raise Unreadable(f"{RAW}; {way_out(RAW)}")
    compression = tags.get(_COMPRESSION, 1)
    if compression == 1:
        return
    offsets, lengths = _TILES if _TILES[0] in tags else _STRIPS
    for start, length in zip(tags.get(offsets, ()), tags.get(lengths, ()), strict=False):
        tail = min(length, 64)
        file.seek(start + length - tail)
        if tail == 64 and not any(file.read(tail)):
            raise Unreadable("damaged (a part of its compressed pixels ends in zeros)")
        if compression == 7:  # JPEG
            file.seek(start)
            tables = tags.get(_JPEG_TABLES, b"")[:-2]
            try:
                content = tables + file.read(length)[2 if tables else 0 :]
                color = simplejpeg.decode_jpeg_header(content)[2]
                color = "CMYK" if color in ("CMYK", "YCCK") else "GRAY"
                simplejpeg.decode_jpeg(content, color, min_height=1, min_width=1)
            except ValueError as error:
                raise Unreadable(damage(error)) from None


def _strip_bytes(image: Any) -> int:
    """Return the uncompressed bytes of the largest strip or tile of a TIFF."""
    tags = image.tag_v2
    sides = [int(tags[tag]) for tag in _TILE_SIZE if tag in tags]
    if len(sides) != 2:
        sides = [image.width, min(image.height, int(tags.get(_ROWS, image.height)))]
    bits = max(tags.get(_BITS, (1,)))
    return sides[0] * sides[1] * int(tags.get(_SAMPLES, 1)) * int(bits) // 8


# --- pixels that aren't RGB -----------------------------------------------------------------------


def _check_range(image: Any) -> None:
    """Raise if the header doesn't define which pixel values are black and white."""
    if image.mode == "F":
        raise Unreadable(f"floating-point pixels have no agreed range; {_SAVE}")
    if image.mode == "LAB":
        raise Unreadable("L*a*b* pixels aren't converted; save it as RGB")
    if image.format == "TIFF" and 2 in image.tag_v2.get(_SAMPLE_FORMAT, ()):
        raise Unreadable(f"signed pixels have no agreed range; {_SAVE}, unsigned")
    # In older versions of Pillow, 16-bit PNG and PPM images have mode I too.
    if image.mode == "I" and image.format not in ("PNG", "PPM"):
        raise Unreadable(f"32-bit pixels have no agreed range; {_SAVE}")


def scaling(image: Any, full: int = 255) -> Callable[[Image.Image], NDArray[Any]]:
    """Return the conversion of 16-bit gray levels that the header defines.

    Args:
        image: Opened by Pillow.
        full: Level of white in the result: 255 for uint8, 65535 for uint16.
    """
    kind = np.uint8 if full == 255 else np.uint16
    white, inverted = 65535, False
    if image.format == "TIFF":
        white = 2 ** max(image.tag_v2.get(_BITS, (16,))) - 1
        inverted = image.tag_v2.get(_PHOTOMETRIC) == 0
    transparent = image.info.get("transparency")

    def scale(band: Image.Image) -> NDArray[Any]:
        levels = np.asarray(band)
        wide = np.minimum(levels, white).astype(np.uint32)
        gray: NDArray[Any] = ((wide * full + white // 2) // white).astype(kind)
        if inverted:
            gray = kind(full) - gray
        if isinstance(transparent, int):
            gray[levels == transparent] = full
        return gray

    return scale


def _on_white(band: Image.Image) -> Image.Image:
    """Return an image as RGB, on a white background."""
    if band.mode in _WITHOUT_RGB:
        band = band.convert(_WITHOUT_RGB[band.mode])
    if not band.has_transparency_data:
        return band.convert("RGB")
    rgba = band.convert("RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white, rgba).convert("RGB")


def _in_bands(
    image: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]
) -> Image.Image:
    """Convert an image, a large one in bands of rows, to avoid a second full copy."""
    if image.width * image.height <= _BAND:
        return convert(image)
    converted = Image.new(mode, image.size)
    step = max(1, _BAND // image.width)
    for top in range(0, image.height, step):
        end = min(image.height, top + step)
        converted.paste(convert(image.crop((0, top, image.width, end))), (0, top))
    return converted


def damage(error: Exception) -> str:
    """Return the message of a decoder's exception, in one line."""
    text = re.sub(r"\s+", " ", str(error)).strip()
    return f"damaged ({text or type(error).__name__})"
