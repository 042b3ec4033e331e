"""Small image files of all formats and modes, written byte by byte if Pillow can't write them."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit.data.images.files import DecodedImage, decode_images, read_images


def image_faults(paths: Sequence[Path]) -> list[str | None]:
    """Return why each file can't be decoded; None if it can."""
    results = decode_images(paths, 8)
    return [None if isinstance(result, DecodedImage) else result for result in results]


def read_image(path: Path, size: int) -> NDArray[np.uint8]:
    """Return one image, (size, size, 3)."""
    image: NDArray[np.uint8] = read_images([path], size)[0]
    return image


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """Return the bytes that Pillow writes."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return smooth noise, which a JPEG preserves well."""
    levels = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3))
    return Image.fromarray(levels.astype(np.uint8)).resize((width, height))


def packed_bits(values: Sequence[int], bits: int) -> bytes:
    """Return a row of values with some bits each, padded to whole bytes."""
    text = "".join(f"{value:0{bits}b}" for value in values)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def tiff(
    rows: Sequence[bytes],
    width: int,
    bits: Sequence[int] = (8,),
    photometric: int = 1,
    more: Mapping[int, tuple[str, Sequence[int]]] | None = None,
    order: str = "<",
    compression: int = 1,
) -> bytes:
    """Return a TIFF with one strip.

    Args:
        rows: bytes of each row, or of the whole compressed strip.
        width: width in pixels.
        bits: bits of each sample of a pixel.
        photometric: 0 for white is zero, 1 for black is zero, 2 RGB, 3 palette, 5 CMYK, ...
        more: types (H or I) and values of further tags, by number.
        order: byte order, as in `struct`.
        compression: 1 for none.
    """
    height = len(rows) if compression == 1 else width
    strip = b"".join(rows)
    tags: dict[int, tuple[str, Sequence[int]]] = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", bits),
        259: ("H", [compression]),
        262: ("H", [photometric]),
        273: ("I", [8]),
        277: ("H", [len(bits)]),
        278: ("I", [height]),
        279: ("I", [len(strip)]),
    } | dict(more or {})
    strip += b"\0" * (len(strip) % 2)
    offset = 8 + len(strip)
    entries, values = b"", b""
    after = offset + 2 + 12 * len(tags) + 4
    for tag, (kind, content) in sorted(tags.items()):
        data = struct.pack(f"{order}{len(content)}{kind}", *content)
        if len(data) > 4:
            entry = struct.pack(f"{order}I", after + len(values))
            values += data + b"\0" * (len(data) % 2)
        else:
            entry = data.ljust(4, b"\0")
        code = {"H": 3, "I": 4, "B": 1}[kind]
        entries += struct.pack(f"{order}HHI", tag, code, len(content)) + entry
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", offset)
    return head + strip + struct.pack(f"{order}H", len(tags)) + entries + b"\0" * 4 + values
