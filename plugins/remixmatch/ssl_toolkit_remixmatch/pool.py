"""The operations of CTAugment, and the bins of their magnitudes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ssl_toolkit.image_ops import (
    autocontrast,
    brightness,
    color,
    contrast,
    equalize,
    invert,
    posterize,
    rotation,
    sharpness,
    shear_x,
    shear_y,
    solarize,
    translation_x,
    translation_y,
)
from ssl_toolkit_remixmatch.operations import (
    Operation,
    blended,
    blur,
    cutout,
    identity,
    moved,
    rescale,
    scaled,
    smooth,
)

BINS = 17


class Entry(NamedTuple):
    """Operation of the pool."""

    name: str
    operation: Operation
    bins: int = BINS
    """Number of bins of its magnitude; 1 without a magnitude."""
    needs_rgb: bool = False
    """True if it is defined for RGB only."""
    needs_8_bits: bool = False
    """True if its result has at most 256 levels."""


def _level(level: Tensor) -> Tensor:
    return level


def _shift(level: Tensor) -> Tensor:
    return (2 * level - 1) * 0.3


POOL = (
    Entry("autocontrast", blended(autocontrast)),
    Entry("blur", blended(blur)),
    Entry("brightness", scaled(brightness, _level)),
    Entry("color", scaled(color, _level), needs_rgb=True),
    Entry("contrast", scaled(contrast, _level)),
    Entry("cutout", cutout),
    Entry("equalize", blended(equalize), needs_8_bits=True),
    Entry("invert", blended(invert)),
    Entry("identity", identity, bins=1),
    Entry(
        "posterize",
        scaled(posterize, lambda level: 1 + (8 * level).floor()),
        bins=8,
        needs_8_bits=True,
    ),
    Entry("rescale", rescale),
    Entry("rotate", moved(rotation, lambda level: ((2 * level - 1) * 45).round())),
    Entry("sharpness", scaled(sharpness, _level)),
    Entry("shear_x", moved(shear_x, _shift)),
    Entry("shear_y", moved(shear_y, _shift)),
    Entry("smooth", blended(smooth)),
    Entry("solarize", scaled(solarize, lambda level: (256 * level).floor() / 256)),
    Entry("translate_x", moved(translation_x, _shift)),
    Entry("translate_y", moved(translation_y, _shift)),
)
"""The operations and ranges of the paper's table."""

RESCALE = [entry.name for entry in POOL].index("rescale")
METHODS = len(POOL)
"""Row of the weights of the filters of `rescale`, after those of the magnitudes."""
