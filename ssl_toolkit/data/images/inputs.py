"""Images as Python code passes them: paths, Pillow images, arrays and tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ssl_toolkit.config.images import RGB8, Fit, PixelFormat, Size
from ssl_toolkit.data.images.files import fit_array, fit_item, try_image
from ssl_toolkit.files import at_home
from ssl_toolkit.text import display_path

ImageInput = str | os.PathLike[str] | Image.Image | NDArray[np.generic] | Tensor
"""A file, an image of Pillow's, an array (H, W, C) or (H, W), or a tensor (C, H, W)."""

Pixels = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.float32]
"""(H, W, C), of 8 or 16 bits or float in [0, 1]."""


def as_list(images: ImageInput | Iterable[ImageInput], channels: int = 3) -> Sequence[ImageInput]:
    """Return one image as a list of one, a stack as its images.

    Stacks are arrays (N, H, W, C), (N, H, W, 1) or (N, H, W), and tensors (N, C, H, W), (N, 1, H,
    W) or (N, H, W). With three dimensions, an array whose last one is at most 4, or the number of
    channels of the model, is one image, and so is a tensor whose first one is 1, 3, 4 or that.
    """
    one = isinstance(images, str | os.PathLike | Image.Image)
    if isinstance(images, np.ndarray):
        one = images.ndim < 3 or (
            images.ndim == 3 and (images.shape[-1] <= 4 or images.shape[-1] == channels)
        )
    elif isinstance(images, Tensor):
        one = images.ndim < 3 or (images.ndim == 3 and images.shape[0] in (1, 3, 4, channels))
    return [images] if one else list(images)  # type: ignore[list-item, arg-type]


def name_of(image: ImageInput, place: int) -> str:
    """Return the name of an image in a message: its path, else its index in the list."""
    return display_path(Path(image)) if isinstance(image, str | os.PathLike) else f"number {place}"


def to_pixels(
    image: ImageInput, size: Size, fit: Fit = "crop", form: PixelFormat = RGB8
) -> Pixels | str:
    """Return one image with the size and format of a model; inside `pillow_muted`, any thread.

    Args:
        image: Arrays and tensors have the channels of the model, or are gray for a model of 3, of
            8 or 16 bits or float in [0, 1]; floats stay floats.
        size: Size in pixels.
        fit: See `fit_image`.
        form: Channels and bits.

    Returns:
        Its pixels, or the reason why it can't be read.
    """
    if isinstance(image, str | os.PathLike):
        return try_image(at_home(image), size, fit, form)
    if isinstance(image, Image.Image):
        return try_image(image, size, fit, form)
    if isinstance(image, Tensor):
        image = channels_last(image, 3)
    given = image.shape[2] if image.ndim == 3 else 1
    known = (1, 3) if form.channels == 3 else (form.channels,)
    if image.ndim not in (2, 3) or given not in known or image.size == 0:
        gray = " or (H, W)" if 1 in known else ""
        return (
            f"an array is (H, W, {form.channels}){gray} and a tensor ({form.channels}, H, W), "
            f"got {tuple(image.shape)} with the channels last"
        )
    if image.dtype in (np.uint8, np.uint16):
        return fit_item(image, size, fit, form)
    if not np.issubdtype(image.dtype, np.floating):
        return f"its dtype is {image.dtype}; expected uint8, uint16, or float in [0, 1]"
    if not (image.min() >= 0 and image.max() <= 1):
        return "floats must be in [0, 1]; divide 0..255 by 255, or give uint8"
    levels = image.astype(np.float32)
    fitted = fit_array(levels if levels.ndim == 3 else levels[..., None], size, fit)
    return np.repeat(fitted, form.channels // given, axis=-1)


def channels_last(images: Tensor, ndim: int) -> NDArray[np.generic]:
    """Return a tensor as an array, with the channels last if it has `ndim` dimensions."""
    images = images.detach().cpu()
    images = images.float() if images.dtype == torch.bfloat16 else images
    array: NDArray[np.generic] = (images.movedim(-3, -1) if images.ndim == ndim else images).numpy()
    return array


def to_float01(pixels: Pixels) -> NDArray[np.float32]:
    """Return pixels as floats in [0, 1]."""
    floats = pixels.astype(np.float32)
    if pixels.dtype.kind == "f":
        return floats
    return floats / np.float32(255 if pixels.dtype == np.uint8 else 65535)
