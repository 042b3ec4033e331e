"""No augmentation, and weak augmentation: a shifted crop of the reflected image, and a flip."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, final

import torch
from torch import Tensor

from ssl_toolkit.config.options import Options, option
from ssl_toolkit.interfaces import AugmentationParams, Augmenter

PADDING_FRACTION = 0.125
"""Padding as a share of the side: 4 pixels at 32, 10 at 84, 28 at 224."""


@final
class NoAugmentation(Augmenter):
    """Leaves images unchanged; `transform` returns its argument."""

    channels: ClassVar[frozenset[int] | None] = None

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw nothing; the generator is not touched."""
        return {}

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Return the images (N, C, H, W) themselves, not a copy."""
        return images


@final
class Weak(Augmenter):
    """Crops at random from the image padded by reflection, and mirrors half of the crops.

    The weak augmentation of FixMatch (Sohn et al., 2020, https://arxiv.org/abs/2001.07685,
    section 2.3) and SimPLE (Hu et al., 2021, https://arxiv.org/abs/2103.16725), drawn for each
    image. Normalization, which they count as part of it, belongs to the classifier here.
    """

    channels: ClassVar[frozenset[int] | None] = None

    class Config(Options):
        """Options of `Weak`."""

        padding_fraction: float = option(
            PADDING_FRACTION,
            help="padding on each side as a share of that side, rounded down to whole pixels",
            source="FixMatch: 4 pixels at 32; SimPLE's authors: int(size / 8)",
            ge=0,
            le=0.5,
        )

    config: Config

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw as `draw_shift` does; no image is mirrored unless `flip`."""
        uniform = torch.rand(count, SHIFT_COLUMNS, generator=generator)
        fraction = self.config.padding_fraction
        return draw_shift(uniform, height, width, fraction=fraction, flip=self.flip)

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Crop and mirror images (N, C, H, W) by N rows of draws; values are copied, not mixed."""
        return shift(images, draws)


SHIFT_COLUMNS = 3
"""Uniform numbers that `draw_shift` takes for each image."""


def draw_shift(
    uniform: Tensor,
    height: int,
    width: int,
    *,
    fraction: float = PADDING_FRACTION,
    flip: bool = True,
) -> AugmentationParams:
    """Draw where to crop and whether to mirror.

    Args:
        uniform: (count, SHIFT_COLUMNS) uniform in [0, 1). torch fills it row after row, so that
            the rows of a shorter draw are the first rows of a longer one.
        height: of the images, in pixels.
        width: of the images, in pixels.
        fraction: padding as a share of the side.
        flip: True if images may be mirrored.

    Returns:
        ``top`` and ``left``, (count,) int64, uniform in [-p, p] for p = int(fraction · side): the
        crop's corner from the image's own; ``mirror``, (count,) bool, true for half if `flip`.
    """
    vertical, horizontal = int(fraction * height), int(fraction * width)
    top, left, mirror = uniform.unbind(1)
    return {
        "top": whole(top, 2 * vertical + 1).sub_(vertical),
        "left": whole(left, 2 * horizontal + 1).sub_(horizontal),
        "mirror": mirror < 0.5 * flip,
    }


def whole(uniform: Tensor, count: int) -> Tensor:
    """Return uniform integers in 0 .. count-1 from (n,) or more uniform numbers in [0, 1)."""
    return (uniform * count).long()


def shift(images: Tensor, draws: AugmentationParams) -> Tensor:
    """Crop images (N, C, H, W) at the drawn offsets, reflecting at the border, then mirror.

    The padded image never exists: pixels are gathered by their places in it, a row of which is one
    slice of a table. Only the starts of these slices are computed from the CPU draws, and moved
    without a synchronization.

    Returns:
        A new tensor of the same shape and dtype.
    """
    count, channels, height, width = images.shape
    mirror, left = draws["mirror"], draws["left"]
    across = 3 * width - 2  # a row of the table
    corner = (mirror * (3 * height - 2) + draws["top"]) * across + torch.where(mirror, -left, left)
    rows = torch.arange(height - 1, 2 * height - 1) * across + (width - 1)
    starts = (corner[:, None] + rows).flatten()
    slices = _reflected_places(height, width, images.device).unfold(0, width, 1)
    pixels = slices.index_select(0, starts.to(images.device, non_blocking=True))
    pixels = pixels.view(count, 1, height * width).expand(-1, channels, -1)
    return images.flatten(2).gather(2, pixels).view_as(images)


@lru_cache(maxsize=4)
def _reflected_places(height: int, width: int, device: torch.device) -> Tensor:
    """Where in the image each pixel comes from when it is reflected on all sides, up to its size.

    Returns:
        The flat form of (2, 3 · height - 2, 3 · width - 2): as it is, and mirrored.
    """
    rows, columns = _reflected(height), _reflected(width)
    places = rows[:, None] * width + columns
    return torch.stack([places, places.flip(1)]).flatten().to(device)


def _reflected(size: int) -> Tensor:
    """The places 1 - size to 2 · size - 2, reflected into [0, size) without repeated border."""
    last = size - 1
    return last - (last - torch.arange(-last, 2 * last + 1).abs()).abs()
