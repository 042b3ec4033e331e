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

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.images.files import placement, try_image
from ssl_toolkit.files import at_home
from ssl_toolkit.text import display_path

ImageInput = str | os.PathLike[str] | Image.Image | NDArray[np.generic] | Tensor
"""A file, an image of Pillow's, an array (H, W, 3) or (H, W), or a tensor (3, H, W)."""

Pixels = NDArray[np.uint8] | NDArray[np.float32]
"""(size, size, 3) RGB, uint8 or float in [0, 1]."""


def as_list(images: ImageInput | Iterable[ImageInput]) -> Sequence[ImageInput]:
    """Return one image as a list of one, a stack as its images.

    Stacks are arrays (N, H, W, 3), (N, H, W, 1) or (N, H, W), and tensors (N, 3, H, W), (N, 1, H,
    W) or (N, H, W). With three dimensions, an array whose last one is at most 4 is one image, and
    so is a tensor whose first one is 1, 3 or 4.
    """
    one = isinstance(images, str | os.PathLike | Image.Image)
    if isinstance(images, np.ndarray):
        one = images.ndim < 3 or (images.ndim == 3 and images.shape[-1] <= 4)
    elif isinstance(images, Tensor):
        one = images.ndim < 3 or (images.ndim == 3 and images.shape[0] in (1, 3, 4))
    return [images] if one else list(images)  # type: ignore[list-item, arg-type]


def name_of(image: ImageInput, place: int) -> str:
    """Return the name of an image in a message: its path, else its index in the list."""
    return display_path(Path(image)) if isinstance(image, str | os.PathLike) else f"number {place}"


def to_pixels(image: ImageInput, size: int, fit: Fit = "crop") -> Pixels | str:
    """Return one image, made square as by `fit_image`; inside `pillow_muted`, from any thread.

    Args:
        image: Arrays and tensors are RGB or gray, uint8 or float in [0, 1]; floats stay floats.
        size: Side in pixels.
        fit: See `fit_image`.

    Returns:
        Its pixels, or the reason why it can't be read.
    """
    if isinstance(image, str | os.PathLike):
        return try_image(at_home(image), size, fit)
    if isinstance(image, Image.Image):
        return try_image(image, size, fit)
    if isinstance(image, Tensor):
        image = channels_last(image, 3)
    if image.ndim == 3 and image.shape[-1] == 1:
        image = image[:, :, 0]
    if not (image.ndim == 2 or (image.ndim == 3 and image.shape[-1] == 3)) or image.size == 0:
        return (
            f"an array is (H, W, 3) or (H, W) and a tensor (3, H, W), got {tuple(image.shape)} "
            "with the channels last"
        )
    if image.dtype == np.uint8:
        return try_image(Image.fromarray(np.ascontiguousarray(image)), size, fit)
    if not np.issubdtype(image.dtype, np.floating):
        return f"its dtype is {image.dtype}; expected uint8, or float in [0, 1]"
    if not (image.min() >= 0 and image.max() <= 1):
        return "floats must be in [0, 1]; divide 0..255 by 255, or give uint8"
    return _fit_float(image.astype(np.float32), size, fit)


def channels_last(images: Tensor, ndim: int) -> NDArray[np.generic]:
    """Return a tensor as an array, with the channels last if it has `ndim` dimensions."""
    images = images.detach().cpu()
    images = images.float() if images.dtype == torch.bfloat16 else images
    array: NDArray[np.generic] = (images.movedim(-3, -1) if images.ndim == ndim else images).numpy()
    return array


def _fit_float(image: NDArray[np.float32], size: int, fit: Fit) -> NDArray[np.float32]:
    """Make an image square as `fit_image`, but without rounding to 8 bits."""
    box, (x, y, width, height) = placement(image.shape[1], image.shape[0], size, fit)
    fitted = np.ones((size, size, 3), np.float32)
    for i, channel in enumerate([image] * 3 if image.ndim == 2 else np.moveaxis(image, -1, 0)):
        whole = Image.fromarray(np.ascontiguousarray(channel))
        resized = whole.resize((width, height), Image.Resampling.BICUBIC, box=box)
        # Bicubic weights overshoot at edges.
        fitted[y : y + height, x : x + width, i] = np.asarray(resized).clip(0, 1)
    return fitted


def to_float01(pixels: Pixels) -> NDArray[np.float32]:
    """Return pixels as floats in [0, 1]."""
    floats = pixels.astype(np.float32)
    return floats / np.float32(255) if pixels.dtype == np.uint8 else floats
