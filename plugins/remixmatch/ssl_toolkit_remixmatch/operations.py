"""CTAugment's operations, batched: images (n, C, H, W) in [0, 1] and the draws of n images.

Definitions are PIL's, and ranges those of the paper's table. Intermediate values are not rounded to
8 bits. Resized and filtered images are within 2/255 of PIL's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.image_ops import Geometry, cutout_, sharpness, warp, warp_by


class Drawn(NamedTuple):
    """Random parameters of n images, on the CPU."""

    level: Tensor
    """(n,) in [0, 1), magnitude."""
    method: Tensor
    """(n,) int64, filter of `rescale` as an index into `KERNELS`."""
    row: Tensor
    """(n,) in [0, 1), vertical position of the center of `cutout`."""
    column: Tensor
    """(n,) in [0, 1), its horizontal position."""


Operation = Callable[[Tensor, Drawn], Tensor]


def identity(images: Tensor, drawn: Drawn) -> Tensor:
    """Return the images."""
    return images


def blended(function: Callable[[Tensor, Tensor], Tensor]) -> Operation:
    """Return an operation that blends the image with a function of it: 0 for the image."""

    def blend(images: Tensor, drawn: Drawn) -> Tensor:
        level = drawn.level.to(images, non_blocking=True)
        return torch.lerp(images, function(images, level), level.view(-1, 1, 1, 1))

    return blend


def scaled(
    function: Callable[[Tensor, Tensor], Tensor], value: Callable[[Tensor], Tensor]
) -> Operation:
    """Return an operation by a function of images and values, and a value for each level."""

    def scale(images: Tensor, drawn: Drawn) -> Tensor:
        return function(images, value(drawn.level).to(images, non_blocking=True))

    return scale


def moved(geometry: Geometry, value: Callable[[Tensor], Tensor]) -> Operation:
    """Return an operation that moves pixels by a geometry, and a value for each level."""

    def move(images: Tensor, drawn: Drawn) -> Tensor:
        return warp_by(images, geometry, value(drawn.level))

    return move


def smooth(images: Tensor, values: Tensor) -> Tensor:
    """Apply PIL's SMOOTH filter (3x3, center 5 of 13), which keeps the outermost pixels."""
    return sharpness(images, torch.zeros_like(values))


def blur(images: Tensor, values: Tensor) -> Tensor:
    """Apply PIL's BLUR filter (the border of a 5x5 square), keeping two border pixels."""
    blurred = images.clone()
    if min(images.shape[-2:]) > 4:
        inner = F.avg_pool2d(images, 3, 1)[..., 1:-1, 1:-1]
        blurred[..., 2:-2, 2:-2] = (25 * F.avg_pool2d(images, 5, 1) - 9 * inner) / 16
    return blurred.clamp_(0, 1)


def cutout(images: Tensor, drawn: Drawn) -> Tensor:
    """Fill a square of up to half the side around a pixel with gray; clipped at the border."""
    height, width = images.shape[-2:]
    half = (1 + (drawn.level * (min(height, width) * 0.499)).long()) // 2
    top, left = (drawn.row * height).long() - half, (drawn.column * width).long() - half
    boxes = torch.stack([top, left, top + 2 * half, left + 2 * half], dim=1)
    return cutout_(images.clone(), boxes.to(images.device, non_blocking=True))


def crop_and_mirror(images: Tensor, uniform: Tensor, flip: bool) -> Tensor:
    """Apply the weak augmentation: a crop of the image padded by reflection, possibly mirrored.

    Args:
        images: (n, C, H, W).
        uniform: (n, 3) in [0, 1), on the CPU: row and column of the crop, and whether to mirror.
        flip: True to mirror half of the cr
    """
    height, width = images.shape[-2:]
    rows, columns = height // 8, width // 8
    top = (uniform[:, 0] * (2 * rows + 1)).floor() - rows
    left = (uniform[:, 1] * (2 * columns + 1)).floor() - columns
    mirror = uniform[:, 2] < 0.5 * flip
    zero, one = torch.zeros_like(top), torch.ones_like(top)
    start = torch.where(mirror, width + 2 * columns + left, left)
    matrix = torch.stack([one.where(~mirror, -one), zero, start, zero, one, top], dim=1)
    padded = F.pad(images, (columns, columns, rows, rows), mode="reflect")
    shifted = warp(padded, matrix.to(images, non_blocking=True))
    return shifted[..., rows : rows + height, columns : columns + width]


# --- rescale ------------------------------------------------------------------------------------


def rescale(images: Tensor, drawn: Drawn) -> Tensor:
    """Resize the central square of half to all of the side to the full size, by a drawn filter."""
    for axis in (3, 2):  # PIL resizes the rows first
        size = images.shape[axis]
        margin = (0.25 * drawn.level * size).round()
        matrix = _resampling(margin, drawn.method, size).to(images, non_blocking=True)
        images = torch.einsum("ncij,nkj->ncik", images.movedim(axis, 3), matrix)
        images = images.movedim(3, axis).clamp(0, 1)
    return images


def _resampling(margin: Tensor, method: Tensor, size: int) -> Tensor:
    """Return the weights (n, size, size) that enlarge the central part of a line.

    Args:
        margin: (n,), pixels that are cut off on each side.
        method: (n,) int64, index into `KERNELS`.
        size: Number of pixels of a line.
    """
    places = torch.arange(size, dtype=torch.float64) + 0.5
    part = (size - 2 * margin.double())[:, None]
    centers = margin[:, None] + places * part / size
    distances = places - centers[:, :, None]
    weights = torch.stack([one(distances) for one in KERNELS])[method, torch.arange(len(method))]
    inside = ((places - size / 2).abs() < part / 2)[:, None, :]
    weights = weights * inside
    return weights / weights.sum(dim=-1, keepdim=True)


def _box(x: Tensor) -> Tensor:
    return ((x > -0.5) & (x <= 0.5)).double()


def _bilinear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp_min(0)


def _hamming(x: Tensor) -> Tensor:
    return torch.sinc(x) * (0.54 + 0.46 * (torch.pi * x).cos()) * (x.abs() < 1)


def _bicubic(x: Tensor) -> Tensor:
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
    return torch.where(x < 1, near, far * (x < 2))


def _lanczos(x: Tensor) -> Tensor:
    return torch.sinc(x) * torch.sinc(x / 3) * (x.abs() < 3)


KERNELS = (_lanczos, _bicubic, _bilinear, _box, _hamming, _box)
"""PIL's filters in the order of the authors' code; the last, the nearest pixel, equals a box when
an image is enlarged."""
