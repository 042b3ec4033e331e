"""No augmentation, and the weak one: a shifted crop of the reflected image, perhaps mirrored."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from ssl_toolkit.config.options import Options, option
from ssl_toolkit.interfaces import Augmenter, Draws

PADDING_FRACTION = 0.125
"""Padding as a share of the side: 4 pixels at 32, 10 at 84, 28 at 224."""


@final
class NoAugmentation(Augmenter):
    """Leaves images as they are; `transform` returns the very tensor it was given."""

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """Draw nothing; the generator is not touched."""
        return {}

    def transform(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the images (N, 3, H, W) themselves, not a copy."""
        return images


@final
class Weak(Augmenter):
    """Crops at random from the image padded by reflection, and mirrors half of the crops.

    The weak augmentation of FixMatch (Sohn et al., 2020, https://arxiv.org/abs/2001.07685,
    section 2.3) and SimPLE (Hu et al., 2021, https://arxiv.org/abs/2103.16725), drawn for each
    image. Normalisation, which they count as part of it, belongs to the classifier here.
    """

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

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """Draw as `draw_shift` does; no image is mirrored unless `flip`."""
        fraction = self.config.padding_fraction
        return draw_shift(count, height, width, generator, fraction=fraction, flip=self.flip)

    def transform(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop and mirror images (N, 3, H, W) by N rows of draws; values are copied, not mixed."""
        return shift(images, draws)


def draw_shift(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    *,
    fraction: float = PADDING_FRACTION,
    flip: bool = True,
) -> Draws:
    """Draw where to crop and whether to mirror.

    Returns:
        ``top`` and ``left``, (count,) int64, uniform in [-p, p] for p = int(fraction · side): the
        crop's corner from the image's own; ``mirror``, (count,) bool, true for half if `flip`.
    """
    vertical, horizontal = int(fraction * height), int(fraction * width)
    top = torch.randint(-vertical, vertical + 1, (count,), generator=generator)
    left = torch.randint(-horizontal, horizontal + 1, (count,), generator=generator)
    # Drawn in any case: `flip` then leaves the other draws of the generator as they are.
    mirror = torch.rand(count, generator=generator) < 0.5
    return {"top": top, "left": left, "mirror": mirror & flip}


def shift(images: Tensor, draws: Draws) -> Tensor:
    """Crop images (N, C, H, W) at the drawn offsets, reflecting at the border, then mirror.

    The padded image never exists: pixels are gathered by reflected indices, which are computed from
    the CPU draws and moved without a synchronisation.

    Returns:
        A new tensor of the same shape and dtype.
    """
    count, channels, height, width = images.shape
    rows = _reflected(draws["top"], height)
    columns = _reflected(draws["left"], width)
    columns = torch.where(draws["mirror"][:, None], columns.flip(1), columns)
    pixels = (rows[:, :, None] * width + columns[:, None]).view(count, 1, height * width)
    pixels = pixels.to(images.device, non_blocking=True)
    return images.flatten(2).gather(2, pixels.expand(-1, channels, -1)).view_as(images)


def _reflected(offset: Tensor, size: int) -> Tensor:
    """Indices (N, size) from each offset on, reflected into [0, size) without repeated border."""
    last = size - 1
    return last - (last - (offset[:, None] + torch.arange(size)).abs()).abs()
