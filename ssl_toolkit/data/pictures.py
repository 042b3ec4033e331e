"""From a picture file to square RGB pixels: one way for training, testing and predicting.

What is done with each kind of file:

* An EXIF turn is applied. A damaged EXIF block tells of no turn and is ignored.
* Grey, palette, CMYK and other modes become RGB. Transparent pictures are laid on white.
* 16-bit grey is scaled by 1/257 to 8 bits. Wider integers above 16 bits and floats have no agreed
  range: such a file counts as unreadable.
* Of several frames or pages the first is taken.
* A file that claims more pixels than Pillow's limit against decompression bombs
  (``PIL.Image.MAX_IMAGE_PIXELS``) is unreadable, on its header alone.
* A file that ends early is unreadable, never half a picture.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ssl_toolkit.data.packed import read_packed
from ssl_toolkit.errors import DataError

# Pillow logs what is odd in a TIFF as errors, which Python prints when nobody asked for a log.
logging.getLogger("PIL").addHandler(logging.NullHandler())

PICTURE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
)
"""Extensions, in lower case, that make a file a picture; its content is then verified."""

# Content is decoded by these alone: a PostScript file named x.png never starts an interpreter.
# Pillow opens the multi-picture JPEGs of telephones as JPEG.
_FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM")

_WIDE_GREY = ("I;16", "I;16L", "I;16B", "I;16N", "I")

Answer = TypeVar("Answer")


class Unreadable(Exception):
    """The reason why a file is no picture; becomes a text or a `DataError`."""


def read_picture(path: Path, size: int) -> NDArray[np.uint8]:
    """Read one picture.

    Args:
        path: the file.
        size: side in pixels, at least 1.

    Returns:
        (size, size, 3) uint8, RGB; see `fit_picture` for how it is made square.

    Raises:
        DataError: it can't be read; names the file and the reason.
    """
    picture: NDArray[np.uint8] = read_pictures([path], size)[0]
    return picture


def read_pictures(paths: Sequence[Path], size: int, workers: int = 0) -> NDArray[np.uint8]:
    """Read several pictures, as `read_picture`.

    Args:
        paths: n files.
        size: side in pixels.
        workers: threads that decode; 0 decodes in the calling one.

    Returns:
        (n, size, size, 3) uint8.

    Raises:
        DataError: some can't be read; one message a file.
    """
    pictures = np.empty((len(paths), size, size, 3), dtype=np.uint8)
    faults = []
    for place, answer in enumerate(
        each_picture(lambda path: try_picture(path, size), paths, workers)
    ):
        if isinstance(answer, str):
            faults.append(f"can't read picture {shown(paths[place])}: {answer}")
        else:
            pictures[place] = answer
    if faults:
        raise DataError(faults)
    return pictures


def try_picture(picture: Path | bytes | Image.Image, size: int) -> NDArray[np.uint8] | str:
    """Read one picture inside `pillow_muted`, from any thread.

    Args:
        picture: a file, the bytes of one, or a picture that Pillow opened or made.
        size: side in pixels.

    Returns:
        As `read_picture`; or the reason why it can't be read.
    """
    opened = nullcontext(picture) if isinstance(picture, Image.Image) else opened_picture(picture)
    try:
        with opened as image:
            return fit_picture(upright_rgb(image), size)
    except Unreadable as error:
        return str(error)
    except Exception as error:  # a picture that Pillow opened elsewhere, decoded only now
        return _damage(error)


@contextlib.contextmanager
def pillow_muted() -> Iterator[None]:
    """Mute Pillow's remarks on odd files, for each fault is told by us; keep its guard.

    Warning filters belong to the process, not to a thread: enter it around a pool of threads, not
    inside.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def picture_faults(paths: Sequence[Path], workers: int = 0) -> list[str | None]:
    """Why each file can't be read, None where it can.

    Every file is decoded to its end; JPEGs at an eighth of their size, which reads all of the
    data at less cost.

    Args:
        paths: the files.
        workers: threads that decode; 0 decodes in the calling one.
    """

    def fault(path: Path) -> str | None:
        try:
            with opened_picture(path) as image:
                image.draft(None, (1, 1))
                # Of the modes only these can fail after decoding.
                if _loaded(image).mode in (*_WIDE_GREY, "F"):
                    upright_rgb(image)
        except Unreadable as error:
            return str(error)
        return None

    return each_picture(fault, paths, workers)


def open_content(path: Path) -> io.BufferedReader | io.BytesIO:
    """The bytes of a picture that is a file, or inside a larger one (see `data.packed`)."""
    packed = read_packed(path)
    return path.open("rb") if packed is None else io.BytesIO(packed)


def fit_picture(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Scale the shorter side to `size` and cut the middle square out.

    Bilinear, antialiased when shrinking. Only the square is computed, so that a picture of
    2000 x 3 pixels costs no more than another; a picture that has the size already is unchanged.

    Args:
        image: mode RGB or L (grey gives three equal channels).
        size: side in pixels, at least 1.

    Returns:
        (size, size, 3) uint8.
    """
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    square = image.resize(
        (size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
    )
    return np.asarray(square.convert("RGB"), dtype=np.uint8)


def shown(path: Path) -> str:
    """A path as text for people, see `text_of`."""
    return text_of(str(path))


def text_of(name: str) -> str:
    """A file name as the text its bytes mean in UTF-8, whatever the locale says they are.

    Bytes that are no UTF-8 show as a backslash, x and their value.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def each_picture(
    task: Callable[[Path], Answer], paths: Sequence[Path], workers: int
) -> list[Answer]:
    """Answers in order."""
    with pillow_muted():
        if workers < 1:
            return [task(path) for path in paths]
        pool = ThreadPoolExecutor(workers)
        try:
            return list(pool.map(task, paths))
        finally:  # after Ctrl-C no picture is begun any more
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def opened_picture(path: Path | bytes) -> Iterator[Image.Image]:
    """Open a picture; whatever goes wrong until it is closed is `Unreadable`."""
    try:
        packed = path if isinstance(path, bytes) else read_packed(path)
        if isinstance(path, Path) and packed is None:
            if path.is_symlink() and not path.exists():
                raise Unreadable("broken link")
            if path.exists() and not path.is_file():
                raise Unreadable("not a regular file")
        source = path if packed is None else io.BytesIO(packed)
        with Image.open(source, formats=_FORMATS) as image:
            yield image
    except Unreadable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable(
            f"claims to be {_claimed_size(path)}, more than the limit of "
            f"{Image.MAX_IMAGE_PIXELS:,} pixels that guards against decompression bombs"
        ) from None
    except FileNotFoundError:
        raise Unreadable("no such file") from None
    except PermissionError:
        raise Unreadable("no permission to read it") from None
    except UnidentifiedImageError:
        with io.BytesIO(path) if isinstance(path, bytes) else open_content(path) as file:
            empty = not file.read(1)
        raise Unreadable("empty file" if empty else "not a picture") from None
    except Exception as error:
        # Decoders meet damaged data with almost any exception.
        raise Unreadable(_damage(error)) from None


def _damage(error: Exception) -> str:
    return f"damaged ({' '.join(str(error).split()) or type(error).__name__})"


def _claimed_size(path: Path | bytes) -> str:
    """Width and height in the header; Pillow refuses to open the file, so ask its readers."""
    with io.BytesIO(path) if isinstance(path, bytes) else open_content(path) as file:
        prefix = file.read(16)
        for name in _FORMATS:
            reader, accepts = Image.OPEN.get(name, (None, None))
            if reader is None or accepts is None or not accepts(prefix):
                continue
            file.seek(0)
            with contextlib.suppress(Exception):
                width, height = reader(file, "").size
                return f"{width} x {height} pixels"
    return "a picture"


def _loaded(image: Image.Image) -> Image.Image:
    image.load()
    return image


def upright_rgb(image: Image.Image) -> Image.Image:
    """The decoded picture, turned as its EXIF says, as RGB."""
    turned = _loaded(image)
    with contextlib.suppress(Exception):  # only EXIF parsing fails here: the pixels are loaded
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            turned = ImageOps.exif_transpose(image)
    if turned.mode in _WIDE_GREY:
        return Image.fromarray(_eight_bits(turned)).convert("RGB")
    if turned.mode == "F":
        raise Unreadable("floating-point pixels have no agreed range; save it with 8 or 16 bits")
    if turned.has_transparency_data:
        clear = turned.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        turned = Image.alpha_composite(white, clear)
    return turned if turned.mode == "RGB" else turned.convert("RGB")  # which would copy it


def _eight_bits(image: Image.Image) -> NDArray[np.uint8]:
    levels = np.asarray(image).astype(np.int64)
    if levels.min() < 0 or levels.max() > 65535:
        raise Unreadable("pixels beyond 16 bits have no agreed range; save it with 8 or 16 bits")
    return ((levels + 128) // 257).astype(np.uint8)
