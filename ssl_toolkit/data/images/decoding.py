"""Decode an image that Pillow opened to upright pixels of 8 bits, or report why it is unreadable.

docs/image-formats.md has a table of all formats and modes.
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

# Blocks of more than 32 MiB go back to the system at once; glibc keeps smaller ones, for every
# thread its own, and a few large images in turn would take the memory of all together.
_imaging.set_block_size(64 * 2**20)

_BAND = 2**22  # pixels converted at a time, where an image has more
_WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_COLORS = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}  # simplejpeg's names by Pillow's modes
_WITHOUT_RGB = {"RGBa": "RGBA", "La": "LA"}  # modes that Pillow converts to RGB by another one
_SAVE = "save it with 8 or 16 bits"

# Tags of TIFF: https://www.loc.gov/preservation/digital/formats/content/tiff_tags.shtml
_BITS, _COMPRESSION, _PHOTOMETRIC, _SAMPLES, _ROWS = 258, 259, 262, 277, 278
_TILE_SIZE, _SAMPLE_FORMAT, _JPEG_TABLES, _DNG_VERSION = (322, 323), 339, 347, 50706
_STRIPS, _TILES = (273, 279), (324, 325)  # where they are, and their lengths


class Unreadable(Exception):
    """A file can't be decoded; the message is the reason."""


class Room:
    """A memory budget that decoding threads share; a request waits until enough is free.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = most
        self._changed = Condition()

    @contextlib.contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        """Hold so many bytes.

        Raises:
            Unreadable: More than there are.
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


# Room for nine bytes a pixel at Pillow's limit on pixels, and for an encoded image.
ROOM = Room(800 * 2**20)


def room_for(image: Image.Image, length: int) -> int:
    """Return the peak memory of decoding in bytes, by the header alone; measured, and rounded up.

    Args:
        image: Opened and not decoded yet.
        length: Of its encoded bytes.
    """
    pixels = image.width * image.height
    each = 8  # Pillow's pixels, at most four bytes, and as RGB, which takes four too
    if image.format in ("JPEG", "MPO"):
        each = 12 if image.mode == "CMYK" else 9 if "progressive" in image.info else 8
        return each * pixels + length
    if image.format in ("WEBP", "AVIF"):
        return 16 * pixels + length
    if image.format == "TIFF":
        return max(each * pixels, 4 * pixels + _strip_bytes(image))
    return each * pixels


def decode(image: Image.Image) -> Image.Image:
    """Decode an image to its end; what the decoder merely warns of is a fault too.

    Args:
        image: Opened by Pillow, its file still open; or any image in memory.

    Returns:
        The pixels, in the mode of the file; `image` itself but for JPEGs.

    Raises:
        Unreadable: It is damaged, or its pixels have no agreed range.
        Exception: Of any kind, from Pillow, on damaged data.
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
    """Return an image in mode RGB or L, turned as its EXIF says, on white where it is transparent.

    Args:
        image: As for `decode`.

    Raises:
        As `decode`.
    """
    turned = decode(image)
    # Only EXIF parsing fails here: the pixels are loaded.
    with contextlib.suppress(Exception):
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            turned = ImageOps.exif_transpose(turned)
    if turned.mode in ("RGB", "L") and not turned.has_transparency_data:
        return turned
    if turned.mode in _WIDE:
        return _in_bands(turned, "L", _scaling(image))
    return _in_bands(turned, "RGB", _on_white)


# --- JPEG -----------------------------------------------------------------------------------------


def _decode_jpeg(image: Image.Image, file: Any) -> Image.Image:
    """Decode with a decoder that reports libjpeg's warnings, which Pillow ignores."""
    file.seek(0)
    content = file.getvalue() if isinstance(file, io.BytesIO) else file.read()
    color = _COLORS[image.mode]
    try:
        levels = simplejpeg.decode_jpeg(content, color)
    except ValueError:
        # Odd notes, such as an unknown version or a cut profile, say nothing about the pixels; and
        # only the first warning is reported.
        try:
            simplejpeg.decode_jpeg(_without_notes(content), color, min_height=1, min_width=1)
        except ValueError as error:
            raise Unreadable(damage(error)) from None
        image.load()
        return image
    if image.mode == "CMYK":
        np.invert(levels, out=levels)  # as all writers do it since Adobe's
    decoded = Image.fromarray(levels[..., 0] if image.mode == "L" else levels, image.mode)
    decoded.info = dict(image.info)
    return decoded


def _without_notes(content: bytes) -> bytes:
    """Return a JPEG without the segments for applications, and without comments."""
    segments, position = [content[:2]], 2
    while content[position : position + 1] == b"\xff" and content[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(content[position + 2 : position + 4], "big")
        if content[position + 1] != 0xFE and content[position + 1] & 0xF0 != 0xE0:
            segments.append(content[position:end])
        position = end
    return b"".join([*segments, content[position:]])


# --- faults that decoders of other formats don't report -------------------------------------------


def _check_tail(image: Image.Image, file: Any) -> None:
    """Refuse a file that ends in zeros: a place that a download kept and did not fill.

    WebP and AVIF have no checksum, and zeros mean something to their decoders. Images of one color
    end in few, about one for 10,000 pixels.
    """
    file.seek(0)
    head = file.read(12)
    length = int.from_bytes(head[4:8], "little") + 8 if image.format == "WEBP" else file.seek(0, 2)
    most = 64 + image.width * image.height // 2000
    file.seek(max(0, length - most))
    if not any(file.read(most)) and length > most:
        raise Unreadable(f"damaged (its last {most:,} bytes or more are zero)")


def _check_strips(image: Any, file: Any) -> None:
    """Refuse a TIFF with compressed strips or tiles that end in zeros, or with damaged JPEGs."""
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
    """Refuse pixels of which the header doesn't say what is black and what is white."""
    if image.mode == "F":
        raise Unreadable(f"floating-point pixels have no agreed range; {_SAVE}")
    if image.mode == "LAB":
        raise Unreadable("L*a*b* pixels aren't converted; save it as RGB")
    if image.format == "TIFF" and 2 in image.tag_v2.get(_SAMPLE_FORMAT, ()):
        raise Unreadable(f"signed pixels have no agreed range; {_SAVE}, unsigned")
    # Of 16 bits in older versions of Pillow too.
    if image.mode == "I" and image.format not in ("PNG", "PPM"):
        raise Unreadable(f"32-bit pixels have no agreed range; {_SAVE}")


def _scaling(image: Any) -> Callable[[Image.Image], Image.Image]:
    """Return the conversion of 16-bit gray levels to 8 bits, by the header."""
    white, inverted = 65535, False
    if image.format == "TIFF":
        white = 2 ** max(image.tag_v2.get(_BITS, (16,))) - 1
        inverted = image.tag_v2.get(_PHOTOMETRIC) == 0
    clear = image.info.get("transparency")

    def scaled(band: Image.Image) -> Image.Image:
        levels = np.asarray(band)
        wide = np.minimum(levels, white).astype(np.uint32)
        gray: NDArray[np.uint8] = ((wide * 255 + white // 2) // white).astype(np.uint8)
        if inverted:
            gray = 255 - gray
        if isinstance(clear, int):
            gray[levels == clear] = 255
        return Image.fromarray(gray)

    return scaled


def _on_white(band: Image.Image) -> Image.Image:
    """Return an image as RGB, on white where it is transparent."""
    if band.mode in _WITHOUT_RGB:
        band = band.convert(_WITHOUT_RGB[band.mode])
    if not band.has_transparency_data:
        return band.convert("RGB")
    clear = band.convert("RGBA")
    white = Image.new("RGBA", clear.size, "white")
    return Image.alpha_composite(white, clear).convert("RGB")


def _in_bands(
    image: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]
) -> Image.Image:
    """Convert an image, a large one some rows at a time, so that there is no second full copy."""
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
