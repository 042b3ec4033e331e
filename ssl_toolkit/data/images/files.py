"""From an image file to pixels of one size: one way for training, testing and predicting.

docs/reference/image-formats.md has a table of all formats and modes; see `decoding`.
Of several frames or pages the first is taken. A file that claims more pixels than Pillow's limit
against decompression bombs (``PIL.Image.MAX_IMAGE_PIXELS``) is unreadable, on its header alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ssl_toolkit.config.images import RGB8, Fit, PixelFormat, Size, sides
from ssl_toolkit.data.images import npy
from ssl_toolkit.data.images.archives import MOST_BYTES, read_packed, too_long
from ssl_toolkit.data.images.decoding import ROOM, Unreadable, damage, room_for, to_upright
from ssl_toolkit.data.images.kinds import AVIF_IS_READ, HEAD, named_kind
from ssl_toolkit.data.images.levels import Levels, convert_bits, convert_channels, to_levels
from ssl_toolkit.data.images.npy import NpyImage
from ssl_toolkit.errors import DataError
from ssl_toolkit.text import display_path

# Pillow logs what is odd in a TIFF as errors, which Python prints if logging is not configured.
logging.getLogger("PIL").addHandler(logging.NullHandler())

IMAGE_SUFFIXES: frozenset[str] = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
    + ((".avif",) if AVIF_IS_READ else ())
)
"""Extensions, in lower case, that make a file an encoded image; its content is then verified."""

FILE_SUFFIXES = IMAGE_SUFFIXES | {npy.SUFFIX}
"""Extensions of the images in folders and lists: arrays, too."""

# Content is decoded by these alone: a PostScript file named x.png never starts an interpreter.
# Pillow opens the multi-image JPEGs of telephones as JPEG.
_FORMATS = ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM"]
if AVIF_IS_READ:
    _FORMATS.append("AVIF")

EncodedImage = io.BufferedReader | io.BytesIO

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""

Answer = TypeVar("Answer")


def read_images(
    paths: Sequence[Path],
    size: Size,
    workers: int = 0,
    fit: Fit = "crop",
    pixels: PixelFormat = RGB8,
) -> Levels:
    """Read images.

    Args:
        paths: N files.
        size: Size in pixels.
        workers: Threads that decode; 0 decodes in the calling one.
        fit: See `fit_image`.
        pixels: Channels and bits.

    Returns:
        (n, H, W, C).

    Raises:
        DataError: Some can't be read; one message a file.
    """
    images = np.empty((len(paths), *sides(size), pixels.channels), dtype=pixels.dtype)
    faults = []
    answers = each_image(lambda path: try_image(path, size, fit, pixels), paths, workers)
    for i, answer in enumerate(answers):
        if isinstance(answer, str):
            faults.append(f"can't read image {display_path(paths[i])}: {answer}")
        else:
            images[i] = answer
    if faults:
        raise DataError(faults)
    return images


def try_image(
    source: Path | bytes | Image.Image, size: Size, fit: Fit = "crop", pixels: PixelFormat = RGB8
) -> Levels | str:
    """Read one image inside `pillow_muted`, from any thread.

    Args:
        source: A file, the bytes of one, or an image that Pillow opened or made.
        size: Size in pixels.
        fit: See `fit_image`.
        pixels: Channels and bits.

    Returns:
        (H, W, C); or the reason why it can't be read.
    """
    try:
        if isinstance(source, Image.Image):
            return _fitted(source, size, fit, pixels)[0]
        with opened_image(source, pixels) as (image, _):
            return _fitted(image, size, fit, pixels)[0]
    except Unreadable as error:
        return str(error)
    except Exception as error:  # an image that Pillow opened elsewhere, decoded only now
        return damage(error)


_MUTED = Lock()
"""Held while Pillow is muted."""


@contextlib.contextmanager
def pillow_muted() -> Iterator[None]:
    """Mute the decoders' warnings (faults are reported here); keep Pillow's limit on pixels.

    Warning filters belong to the process, not to a thread: enter it around a pool of threads. It
    changes nothing inside of another one, as in those threads.
    """
    if not _MUTED.acquire(blocking=False):
        yield
        return
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\b")
            # The decoder of PNG with 16 bits says that another package will replace it.
            warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        _MUTED.release()


@dataclass(frozen=True)
class DecodedImage:
    """A readable image and facts about its file."""

    pixels: Levels
    """(H, W, C); see `fit_image`."""
    digest: bytes
    """SHA-256 of the file, 32 bytes."""
    shape: tuple[int, int]
    """Width and height of the upright image."""
    mode: str
    """Pillow's name for the pixels of the file, such as RGB, L or I;16; with + if a TIFF has more
    pages."""


def decode_images(
    paths: Sequence[Path],
    size: Size,
    workers: int = 0,
    fit: Fit = "crop",
    pixels: PixelFormat = RGB8,
) -> list[DecodedImage | str]:
    """Read and hash images, each decoded once and to its end.

    Args:
        paths: Paths to the images.
        size: Size in pixels.
        workers: Threads that decode; 0 decodes in the calling one.
        fit: See `fit_image`.
        pixels: Channels and bits.

    Returns:
        For each the image, or the reason why it can't be read.
    """

    def decoded(path: Path) -> DecodedImage | str:
        try:
            with opened_image(path, pixels) as (image, file):
                mode, tags = image.mode, getattr(image, "tag_v2", None)
                if tags is not None and tags.next:
                    mode += "+"
                fitted, shape = _fitted(image, size, fit, pixels)
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").digest()
                return DecodedImage(fitted, digest, shape, mode)
        except Unreadable as error:
            return str(error)

    return each_image(decoded, paths, workers)


def _fitted(
    image: Image.Image | NpyImage, size: Size, fit: Fit, pixels: PixelFormat
) -> tuple[Levels, tuple[int, int]]:
    """Return the pixels of an image, and its width and height when it is upright."""
    if isinstance(image, NpyImage):
        levels = image.levels(pixels)
        return fit_item(levels, size, fit, pixels), (levels.shape[1], levels.shape[0])
    if pixels == RGB8:
        upright = to_upright(image)
        return fit_image(upright, size, fit), upright.size
    levels = to_levels(image, pixels)
    return fit_array(levels, size, fit), (levels.shape[1], levels.shape[0])


def fit_image(image: Image.Image, size: Size, fit: Fit = "crop") -> NDArray[np.uint8]:
    """Give an image the size of the run.

    Bicubic, antialiased when shrinking. At most the result is computed, so that an image of
    2000 x 3 pixels costs no more than another; an image that has the size already is unchanged.

    Args:
        image: Mode RGB or L (gray gives three equal channels).
        size: Size in pixels, at least 1.
        fit: ``crop`` cuts out the largest middle part that has the aspect ratio of `size`, such as
            the middle square, and scales it; ``pad`` scales the whole image as large as fits and
            centers it on white.

    Returns:
        (H, W, 3) uint8.
    """
    box, (x, y, width, height) = placement(image.width, image.height, size, fit)
    resized = image.resize((width, height), Image.Resampling.BICUBIC, box=box)
    fitted = np.full((*sides(size), 3), 255, dtype=np.uint8)
    fitted[y : y + height, x : x + width] = np.asarray(resized.convert("RGB"))
    return fitted


def fit_array(levels: NDArray[Any], size: Size, fit: Fit = "crop") -> NDArray[Any]:
    """Give an array (H, W, C) of uint8, uint16 or floats in [0, 1] another size; see `fit_image`.

    Each channel is scaled on its own: an alpha channel has no influence on the others.
    """
    box, (x, y, width, height) = placement(levels.shape[1], levels.shape[0], size, fit)
    is_float, channels = levels.dtype.kind == "f", levels.shape[2]
    white = 1 if is_float else np.iinfo(levels.dtype).max
    fitted = np.full((*sides(size), channels), white, levels.dtype)
    for channel in range(channels):
        plane = np.ascontiguousarray(levels[..., channel])
        if plane.dtype != np.uint8:
            plane = plane.astype(np.float32)
        whole = Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC, box=box)
        resized = np.asarray(whole).clip(0, white)  # bicubic weights overshoot at edges
        resized = resized if is_float or plane.dtype == np.uint8 else np.rint(resized)
        fitted[y : y + height, x : x + width, channel] = resized
    return fitted


def fit_item(item: NDArray[Any], size: Size, fit: Fit, pixels: PixelFormat) -> Levels:
    """Return an image (H, W) or (H, W, C) with another size and format.

    Raises:
        Unreadable: It has other channels than `pixels`, to which they can't be converted.
    """
    if pixels == RGB8 and item.dtype == np.uint8 and item.shape[2:] in ((), (3,)):
        return fit_image(Image.fromarray(item), size, fit)
    levels = convert_bits(item if item.ndim == 3 else item[..., None], pixels)
    given = levels.shape[2]
    if given != pixels.channels and not {given, pixels.channels} <= {1, 3}:
        raise Unreadable(f"has {given} channels, not {pixels.channels}; set --channels {given}")
    return fit_array(convert_channels(levels, pixels.channels), size, fit)


def placement(width: int, height: int, size: Size, fit: Fit) -> tuple[Box, tuple[int, ...]]:
    """Return how an image gets a size; see `fit_image`.

    Returns:
        The box of the image that is resized; and its left, top, width and height in the result.
    """
    down, across = sides(size)
    is_wide = width * down >= height * across  # wider than the size
    if fit == "crop":
        box = (height * across / down, height) if is_wide else (width, width * down / across)
        left, top = (width - box[0]) / 2, (height - box[1]) / 2
        return (left, top, left + box[0], top + box[1]), (0, 0, across, down)
    if is_wide:
        inner = across, max(1, round(across * height / width))
    else:
        inner = max(1, round(down * width / height)), down
    return (0, 0, width, height), ((across - inner[0]) // 2, (down - inner[1]) // 2, *inner)


def each_image(task: Callable[[Path], Answer], paths: Sequence[Path], workers: int) -> list[Answer]:
    """Apply a task to every image, in order."""
    with pillow_muted():
        if workers < 1:
            return [task(path) for path in paths]
        pool = ThreadPoolExecutor(workers)
        try:
            return list(pool.map(task, paths))
        finally:  # after Ctrl-C no further image is started
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def opened_image(
    path: Path | bytes, pixels: PixelFormat = RGB8
) -> Iterator[tuple[Image.Image | NpyImage, EncodedImage]]:
    """Open an image and its encoded bytes; whatever goes wrong until it is closed is `Unreadable`.

    The memory that decoding it to a pixel format takes is held until then.
    """
    levels = 0 if pixels == RGB8 else pixels.channels * pixels.bits // 8
    head = b""
    try:
        with open_content(path) as file:
            length = file.seek(0, os.SEEK_END)
            if length > MOST_BYTES:
                raise Unreadable(too_long(length))
            file.seek(0)
            head = file.read(HEAD)
            file.seek(0)
            if head.startswith(npy.MAGIC):
                array = NpyImage(file, length)
                width, height = array.size
                if width * height > (Image.MAX_IMAGE_PIXELS or math.inf):
                    raise Unreadable(_too_large(f"{width} x {height} pixels"))
                with ROOM.reserve(array.room(pixels)):
                    yield array, file
                return
            with (
                Image.open(file, formats=_FORMATS) as image,
                ROOM.reserve(room_for(image, length, levels)),
            ):
                yield image, file
    except Unreadable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable(_too_large(_claimed_size(path))) from None
    except FileNotFoundError:
        raise Unreadable("no such file") from None
    except PermissionError:
        raise Unreadable("no permission to read it") from None
    except UnidentifiedImageError:
        raise Unreadable(named_kind(head) or ("not an image" if head else "empty file")) from None
    except Exception as error:
        # Decoders meet damaged data with almost any exception.
        raise Unreadable(damage(error)) from None


def open_content(path: Path | bytes) -> EncodedImage:
    """Open the encoded bytes of an image, which may be inside a larger file (see `archives`).

    Raises:
        Unreadable: A broken link, or nothing that has contents.
        OSError: The file can't be read.
    """
    content = path if isinstance(path, bytes) else read_packed(path)
    if content is not None:
        return io.BytesIO(content)
    assert isinstance(path, Path)
    if path.is_symlink() and not path.exists():
        raise Unreadable("broken link")
    if path.exists() and not path.is_file():
        raise Unreadable("not a regular file")
    return path.open("rb")


def _too_large(size: str) -> str:
    return (
        f"claims to be {size}, more than the limit of {Image.MAX_IMAGE_PIXELS:,} pixels that "
        "guards against decompression bombs"
    )


def _claimed_size(path: Path | bytes) -> str:
    """Return width and height in the header, from Pillow's readers: it refuses to open the file."""
    with open_content(path) as file:
        prefix = file.read(16)
        for name in _FORMATS:
            reader, accepts = Image.OPEN.get(name, (None, None))
            if reader is None or accepts is None or not accepts(prefix):
                continue
            file.seek(0)
            with contextlib.suppress(Exception):
                width, height = reader(file, "").size
                return f"{width} x {height} pixels"
    return "an image"
