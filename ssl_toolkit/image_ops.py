"""Operations on batches of images, as PIL defines them, for augmenters.

An operation takes images (n, C, H, W) in [0, 1], RGB if C is 3, and values (n,), one per image, on
the device and in the dtype of the images. It returns a tensor of the images' shape with values in
[0, 1], does not change its input, draws no random numbers, and never waits for the device.
Definitions are PIL's. Intermediate values are not rounded to 8 bits, which keeps colors within
2/255 of PIL's (1.41/255 at 32, 84 and 224 pixels); where the definition uses 8-bit levels
(equalize, posterize, solarize), levels are rounded as PIL would store them.

A geometric operation, such as `rotation`, maps a value, the height and the width to the matrix that
`warp` applies, in the convention of `Image.transform`; `warp_by` does both. The nearest pixel is
taken (PIL's default, which FixMatch's code uses), and black outside the image. Translations give
exactly PIL's pixels. In a rotation or a shear, a pixel whose source falls onto the border between
two pixels may differ from PIL's, which uses 16-bit fractions: at 32, 84 and 224 pixels 0.01, 0.02
and 0.08 % of the pixels of rotations over all levels, at most 0.15 % at one, and 0.2 % of those of
shears, nearly all at the one level (0.12) that puts every 25th pixel onto such a border.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "Geometry",
    "Operation",
    "add_brightness",
    "autocontrast",
    "brightness",
    "color",
    "contrast",
    "cutout_",
    "equalize",
    "invert",
    "posterize",
    "rotation",
    "scale_contrast",
    "scale_saturation",
    "sharpness",
    "shear_x",
    "shear_y",
    "solarize",
    "solarize_below",
    "translation_x",
    "translation_y",
    "warp",
    "warp_by",
]

Operation = Callable[[Tensor, Tensor], Tensor]
Matrix = tuple[float, float, float, float, float, float]
Geometry = Callable[[float, int, int], Matrix]

# --- color, as PIL defines it ------------------------------------------------------------------


def autocontrast(images: Tensor, values: Tensor | None = None) -> Tensor:
    """Stretch each channel to [0, 1]; a channel whose levels are all equal stays unchanged.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: Ignored.
    """
    low = _levels(images.amin((2, 3), keepdim=True))
    span = _levels(images.amax((2, 3), keepdim=True)) - low
    stretched = ((images * 255 - low) / span.clamp(min=1)).clamp(0, 1)
    return torch.where(span > 0, stretched, images)


def equalize(images: Tensor, values: Tensor | None = None) -> Tensor:
    """Flatten the histogram of each channel by PIL's integer table; levels are rounded to 8 bits.

    A channel with a single level, or with fewer than 255 pixels outside its highest level, stays
    unchanged.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: Ignored.
    """
    levels = _levels(images).flatten(2).long()
    # Integers are exact as floats, which avoids conversions.
    histogram = images.new_zeros(*levels.shape[:2], 256)
    histogram.scatter_add_(2, levels, histogram.new_ones(()).expand_as(levels))
    highest = histogram.gather(2, levels.amax(2, keepdim=True))
    step = ((levels.shape[2] - highest) / 255).floor()
    below = histogram.cumsum(2).sub_(histogram)
    table = (
        below.add_((step / 2).floor()).div_(step.clamp(min=1)).floor_().clamp_(max=255).div_(255)
    )
    return torch.where(step[..., None] > 0, table.gather(2, levels).view_as(images), images)


def invert(images: Tensor, values: Tensor | None = None) -> Tensor:
    """Return the negative of each image.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: Ignored.
    """
    return 1 - images


def brightness(images: Tensor, values: Tensor) -> Tensor:
    """Blend with black: 0 gives black, 1 the image.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) factors of at least 0.
    """
    return (images * _each(values)).clamp_(0, 1)


def color(images: Tensor, values: Tensor) -> Tensor:
    """Blend with the gray image: 0 gives gray, 1 the image. RGB only.

    Args:
        images: (n, 3, H, W) in [0, 1].
        values: (n,) shares of the image, at least 0.
    """
    return torch.lerp(_gray(images), images, _each(values)).clamp_(0, 1)


def contrast(images: Tensor, values: Tensor) -> Tensor:
    """Blend with the mean gray of the image: 0 gives a plain gray, 1 the image.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) shares of the image, at least 0.
    """
    mean = _gray(images).mean((2, 3), keepdim=True)
    return torch.lerp(mean, images, _each(values)).clamp_(0, 1)


def sharpness(images: Tensor, values: Tensor) -> Tensor:
    """Blend with PIL's SMOOTH filter (3x3, center 5 of 13), which keeps the outermost pixels.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) shares of the image, at least 0.
    """
    smooth = images.clone()
    if min(images.shape[-2:]) > 2:
        rows = (images[..., :-2, :] + images[..., 1:-1, :]).add_(images[..., 2:, :])
        box = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])
        smooth[..., 1:-1, 1:-1].mul_(4).add_(box).div_(13)
    return smooth.lerp_(images, _each(values)).clamp_(0, 1)


def posterize(images: Tensor, values: Tensor) -> Tensor:
    """Keep the highest floor(value) bits of each level, value in [1, 8].

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) numbers of bits, 1 to 8.
    """
    step = torch.exp2(8 - _each(values).floor())
    return (_levels(images) / step).floor() * step / 255


def solarize(images: Tensor, values: Tensor) -> Tensor:
    """Invert where the 8-bit level is at least 256 · value: 0 inverts all, 1 nothing.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) thresholds, 0 to 1.
    """
    return torch.where(_levels(images) >= 256 * _each(values), 1 - images, images)


# --- color, as in the code of SimPLE's authors -------------------------------------------------


def add_brightness(images: Tensor, values: Tensor) -> Tensor:
    """Add the value to each channel.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) summands.
    """
    return (images + _each(values)).clamp(0, 1)


def scale_contrast(images: Tensor, values: Tensor) -> Tensor:
    """Multiply each channel by the value, independent of the mean.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) factors of at least 0.
    """
    return (images * _each(values)).clamp(0, 1)


def scale_saturation(images: Tensor, values: Tensor) -> Tensor:
    """Multiply the saturation of HSV by the value, up to full saturation. RGB only.

    Args:
        images: (n, 3, H, W) in [0, 1].
        values: (n,) factors of at least 0.
    """
    brightest = images.amax(1, keepdim=True)
    # With hue and value fixed, the distance of each channel to the brightest grows with the
    # saturation until the darkest channel is 0.
    limit = brightest / (brightest - images.amin(1, keepdim=True)).clamp(min=1e-6)
    factor = torch.minimum(_each(values), limit.clamp(min=1))
    return (brightest + factor * (images - brightest)).clamp(0, 1)


def solarize_below(images: Tensor, values: Tensor) -> Tensor:
    """Invert where the image is below the value.

    Args:
        images: (n, C, H, W) in [0, 1].
        values: (n,) thresholds, 0 to 1.
    """
    return torch.where(images < _each(values), 1 - images, images)


# --- geometry -----------------------------------------------------------------------------------


def rotation(value: float, height: int, width: int) -> Matrix:
    """Rotate about the center by degrees, counter-clockwise if positive.

    Args:
        value: Degrees.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
    """
    cos, sin = math.cos(math.radians(value)), math.sin(math.radians(value))
    x = (width - cos * width + sin * height) / 2
    y = (height - sin * width - cos * height) / 2
    return cos, -sin, x, sin, cos, y


def shear_x(value: float, height: int, width: int) -> Matrix:
    """Shear about the upper left corner: row y moves left by value · y if positive.

    Args:
        value: Displacement per row.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
    """
    return 1.0, value, 0.0, 0.0, 1.0, 0.0


def shear_y(value: float, height: int, width: int) -> Matrix:
    """Shear about the upper left corner: column x moves up by value · x if positive.

    Args:
        value: Displacement per column.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
    """
    return 1.0, 0.0, 0.0, value, 1.0, 0.0


def translation_x(value: float, height: int, width: int) -> Matrix:
    """Move left, if positive, by a share of the width.

    Args:
        value: Share of the width.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
    """
    return 1.0, 0.0, value * width, 0.0, 1.0, 0.0


def translation_y(value: float, height: int, width: int) -> Matrix:
    """Move up, if positive, by a share of the height.

    Args:
        value: Share of the height.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
    """
    return 1.0, 0.0, 0.0, 0.0, 1.0, value * height


def warp_by(images: Tensor, geometry: Geometry, values: Tensor) -> Tensor:
    """Apply one geometric operation with a value for each image.

    Args:
        images: (n, C, H, W).
        geometry: Operation, such as `rotation` or `shear_x`.
        values: (n,), on the CPU.

    Returns:
        (n, C, H, W).
    """
    height, width = images.shape[-2:]
    matrices = [geometry(value, height, width) for value in values.tolist()]
    matrix = torch.tensor(matrices, dtype=images.dtype)
    return warp(images, matrix.to(images.device, non_blocking=True))


def warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Fill pixel (x, y) from the pixel at (ax + by + c, dx + ey + f); black outside.

    Coordinates are those of pixel centers, the first at 0.5.

    Args:
        images: (n, C, H, W).
        matrices: (n, 6), a row a, b, c, d, e, f per image.

    Returns:
        (n, C, H, W).
    """
    count, channels, height, width = images.shape
    a, b, c, d, e, f = matrices[:, :, None, None].unbind(1)
    x = torch.arange(width, device=images.device, dtype=images.dtype) + 0.5
    y = torch.arange(height, device=images.device, dtype=images.dtype)[:, None] + 0.5
    column, row = (a * x + (b * y + c)).floor_(), (d * x + (e * y + f)).floor_()
    nearest_column, nearest_row = column.clamp(0, width - 1), row.clamp(0, height - 1)
    inside = (column == nearest_column) & (row == nearest_row)
    index = (nearest_row * width + nearest_column).long().view(count, 1, -1)
    moved = images.flatten(2).gather(2, index.expand(-1, channels, -1)).view_as(images)
    return moved.mul_(inside[:, None])


# --- shared -------------------------------------------------------------------------------------


def cutout_(images: Tensor, boxes: Tensor) -> Tensor:
    """Fill the box of each image with gray (0.5), in place.

    Args:
        images: (n, C, H, W).
        boxes: (n, 4) int64 rows of top, left, bottom, right, the last two exclusive; parts
            outside the image are ignored.
    """
    top, left, bottom, right = boxes[:, :, None].unbind(1)
    y = torch.arange(images.shape[-2], device=images.device)
    x = torch.arange(images.shape[-1], device=images.device)
    rows, columns = (y >= top) & (y < bottom), (x >= left) & (x < right)
    # Weights of 0 and 1 are exact; on a CPU this takes a third of the time of masked_fill_.
    rows, columns = rows.to(images.dtype), columns.to(images.dtype)
    cut = rows[:, None, :, None] * columns[:, None, None, :]
    return images.lerp_(images.new_full((), 0.5), cut)


def _each(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _levels(images: Tensor) -> Tensor:
    """Return the 8-bit levels 0 to 255 as floats."""
    return (images * 255).round()


def _gray(images: Tensor) -> Tensor:
    """Return the luma (n, 1, H, W) of RGB as PIL's mode L; of other channels, their mean."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images[:, :, None].unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue
