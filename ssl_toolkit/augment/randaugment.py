"""RandAugment, the strong augmentation: operations drawn per image, then Cutout."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from ssl_toolkit import image_ops as ops
from ssl_toolkit.augment.weak import SHIFT_COLUMNS, draw_shift, shift, whole
from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.config.options import Options, option
from ssl_toolkit.interfaces import AugmentationParams, Augmenter


class Entry(NamedTuple):
    """Operation of a pool: a change of colors or of geometry."""

    name: str
    value: Callable[[int], float]
    """Maps a level to the value of the operation; level 10 is the upper end of the range."""
    operation: ops.Operation | None = None
    geometry: ops.Geometry | None = None
    signed: bool = False
    """True if the value gets a random sign."""
    needs_rgb: bool = False
    """True if it is defined for RGB only."""
    needs_8_bits: bool = False
    """True if its result has at most 256 levels."""


def _none(level: int) -> float:
    return 0.0


def _enhance(level: int) -> float:
    return 0.09 * level + 0.05


def _share(level: int) -> float:
    return 0.03 * level


# In both pools the geometric operations come last; they are applied together.
FIXMATCH = (
    Entry("identity", _none),
    Entry("autocontrast", _none, ops.autocontrast),
    Entry("equalize", _none, ops.equalize, needs_8_bits=True),
    Entry("brightness", _enhance, ops.brightness),
    Entry("color", _enhance, ops.color, needs_rgb=True),
    Entry("contrast", _enhance, ops.contrast),
    Entry("sharpness", _enhance, ops.sharpness),
    Entry("posterize", lambda level: 4.0 + 4 * level // 10, ops.posterize, needs_8_bits=True),
    Entry("solarize", lambda level: 1 - level / 10, ops.solarize),
    Entry("rotate", lambda level: 3.0 * level, geometry=ops.rotation, signed=True),
    Entry("shear_x", _share, geometry=ops.shear_x, signed=True),
    Entry("shear_y", _share, geometry=ops.shear_y, signed=True),
    Entry("translate_x", _share, geometry=ops.translation_x, signed=True),
    Entry("translate_y", _share, geometry=ops.translation_y, signed=True),
)
"""The 14 operations and ranges of FixMatch's table, as PIL defines them."""


def _between(low: float, high: float) -> Callable[[int], float]:
    return lambda level: low + (high - low) * level / 10


AUTHORS = (
    Entry("identity", _none),
    Entry("autocontrast", _none, ops.autocontrast),
    Entry("equalize", _none, ops.equalize, needs_8_bits=True),
    Entry("brightness", _between(0.05, 0.95), ops.add_brightness),
    Entry("color", _between(0.05, 0.95), ops.scale_saturation, needs_rgb=True),
    Entry("contrast", _between(0.05, 0.95), ops.scale_contrast),
    Entry("sharpness", _between(0.05, 0.95), ops.sharpness),
    Entry("posterize", _between(4, 8), ops.posterize, needs_8_bits=True),
    Entry("solarize", _between(0, 1), ops.solarize_below),
    Entry("rotate", _between(-30, 30), geometry=ops.rotation),
    Entry("shear_x", _between(-0.3, 0.3), geometry=ops.shear_x),
    Entry("shear_y", _between(-0.3, 0.3), geometry=ops.shear_y),
    Entry("translate_x", _between(-0.3, 0.3), geometry=ops.translation_x),
    Entry("translate_y", _between(-0.3, 0.3), geometry=ops.translation_y),
)
"""The operations as SimPLE's authors released them; levels up to 11 overshoot the ranges."""

_NOT_APPLIED = -1


@final
class RandAugment(Augmenter):
    """Applies a few operations drawn from a pool of 14, each with a random magnitude, then Cutout.

    RandAugment (Cubuk et al., 2019, https://arxiv.org/abs/1909.13719) as FixMatch uses it (Sohn et
    al., 2020, https://arxiv.org/abs/2001.07685, appendix): weak augmentation first; then
    `num_ops` times an operation drawn with replacement for each image and applied with
    `probability`, at level 1 to 9 of 10 of the table's range; then a gray square of half the side
    around a uniformly drawn pixel, clipped at the border (Cutout, DeVries & Taylor, 2017,
    https://arxiv.org/abs/1708.04552).

    FixMatch's code has other ranges than its table (enhancement 0.28 to 1.72, posterize 4 to 1
    bits, translation by 1 to 9 pixels); the table is followed, in steps of a tenth of the range.
    Operations act on unrounded values in float32 or wider; colors are within 2/255 of PIL's.
    Geometric operations take the nearest pixel and fill with black, as PIL does by default. They
    give PIL's pixels, except where the source falls onto the border between two pixels in a
    rotation or a shear (`ssl_toolkit.image_ops` gives the shares).

    The variant ``authors`` follows the code of SimPLE's authors: brightness is added, contrast is
    scaled without a mean, saturation is scaled in HSV, solarize inverts values below its threshold,
    levels 1 to 11 overshoot the range by a tenth, signs come from the range, and the square is
    inside the image. Its geometry takes the nearest pixel instead of bilinear interpolation.

    Images of other formats have a smaller pool: without color unless they are RGB, and with 16 bits
    without equalize and posterize, whose results have 256 levels. The gray image of contrast is the
    mean of the channels unless they are RGB.
    """

    channels: ClassVar[frozenset[int] | None] = None

    class Config(Options):
        """Options of `RandAugment`."""

        num_ops: int = option(
            2,
            help="number of operations drawn per image",
            source="FixMatch, code; SimPLE, appendix",
            ge=0,
            le=14,
        )
        probability: float = option(
            0.5,
            help="probability that a drawn operation is applied",
            source="code of FixMatch and of SimPLE",
            ge=0,
            le=1,
        )
        choice: Literal["image", "batch"] = option(
            "image",
            help="draw operation and magnitude per image, or once for all images of a view",
            source="image: code of FixMatch; batch: SimPLE, section 3.2, and its code",
        )
        magnitude: Literal["random", "max"] = option(
            "random",
            help="draw the level, or always use the upper end of each range",
            source="random: FixMatch, and SimPLE's appendix; max: SimPLE, section 3.2",
        )
        variant: Literal["fixmatch", "authors"] = option(
            "fixmatch",
            help="operations of FixMatch's table as PIL defines them, or those of SimPLE's authors",
            source="FixMatch, appendix; SimPLE's released code",
        )
        cutout: float = option(
            0.5,
            help="side of the gray square as a share of the shorter image side; 0 for none",
            source="FixMatch: 16 pixels at 32; SimPLE's code: size / 2",
            ge=0,
            le=1,
        )
        include_weak: bool = option(
            True,
            help="crop and mirror as the weak augmentation before the operations",
            source="code of FixMatch and of SimPLE",
        )

    config: Config

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__(config, flip=flip)
        self._top_level = 11 if self.config.variant == "authors" else 9
        levels = range(self._top_level + 2)
        self._values = torch.tensor([[entry.value(k) for k in levels] for entry in self.pool])
        self._signed = torch.tensor([entry.signed for entry in self.pool])
        self._drawn = torch.arange(len(self.pool))

    @property
    def pool(self) -> tuple[Entry, ...]:
        """Operations to draw from, in the order of the drawn indices."""
        return AUTHORS if self.config.variant == "authors" else FIXMATCH

    def omit_operations(self, pixels: PixelFormat) -> tuple[str, ...]:
        """Leave out color unless the images are RGB, equalize and posterize for 16 bits."""
        omitted = [
            (entry.needs_rgb and pixels.channels != 3) or (entry.needs_8_bits and pixels.bits > 8)
            for entry in self.pool
        ]
        self._drawn = torch.tensor([i for i, out in enumerate(omitted) if not out])
        return tuple(entry.name for entry, out in zip(self.pool, omitted, strict=True) if out)

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw operations, values and squares.

        Returns:
            ``operation``, (count, num_ops) int64 index into the pool, -1 where not applied;
            ``value``, (count, num_ops) float32; ``box``, (count, 4) int64, see
            `image_ops.cutout_`, unless there is no cutout; and those of `weak.draw_shift` if
            `include_weak`.
        """
        # A row of uniform numbers per image, filled row by row, so that a longer draw starts with
        # a shorter one. Numbers that `include_weak` or `cutout` leave unused are drawn too, so that
        # these options do not change the other draws.
        columns = [SHIFT_COLUMNS, 2, 4 * self.config.num_ops]
        uniform = torch.rand(count, sum(columns), generator=generator)
        shifted, square, slots = torch.split(uniform, columns, dim=1)
        draws: AugmentationParams = {}
        if self.config.include_weak:
            draws |= draw_shift(shifted, height, width, flip=self.flip)
        if self.config.choice == "batch":
            slots = slots[:1].expand(count, -1)
        picked, level, sign, applied = slots.view(count, 4, self.config.num_ops).unbind(1)
        operation = self._drawn[whole(picked, len(self._drawn))]
        if self.config.magnitude == "max":
            value = self._values[operation, 10]
        else:
            value = self._values[operation, 1 + whole(level, self._top_level)]
        value = torch.where(self._signed[operation] & (sign < 0.5), -value, value)
        draws["operation"] = operation.where(applied < self.config.probability, _NOT_APPLIED)
        draws["value"] = value
        if side := round(self.config.cutout * min(height, width)):
            draws["box"] = self._draw_box(square, height, width, side)
        return draws

    def _draw_box(self, uniform: Tensor, height: int, width: int, side: int) -> Tensor:
        if self.config.variant == "authors":
            highs, start = (height - side + 1, width - side + 1), 0
        else:
            highs, start = (height, width), -(side // 2)
        corner = [
            whole(column, k) + start for column, k in zip(uniform.unbind(1), highs, strict=True)
        ]
        return torch.stack([*corner, *(k + side for k in corner)], dim=1)

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Augment images (N, C, H, W) by N rows of draws, in float32 or wider.

        In each slot, images are sorted by operation on the basis of the draws, which are on the
        CPU, so that each operation runs once, on a slice, and nothing is read back from the
        device. Not differentiable.
        """
        work = images.to(torch.promote_types(images.dtype, torch.float32))
        if "top" in draws:
            work = shift(work, draws)
        places = torch.arange(len(work))  # position of each image
        for operation, value in zip(
            draws["operation"].unbind(1), draws["value"].unbind(1), strict=True
        ):
            order = operation.argsort(stable=True)
            work = work.index_select(0, places[order].to(work.device, non_blocking=True))
            self._apply_slot(work, operation, value[order])
            places = order.argsort()
        # Also with zero operations, because the cutout writes in place.
        work = work.index_select(0, places.to(work.device, non_blocking=True))
        if "box" in draws:
            ops.cutout_(work, draws["box"].to(images.device, non_blocking=True))
        return work.to(images.dtype)

    def _apply_slot(self, work: Tensor, operation: Tensor, value: Tensor) -> None:
        """Apply one operation per image in place; images and values are sorted by operation."""
        height, width = work.shape[-2:]
        values = value.to(work.device, work.dtype, non_blocking=True)
        # tolist does not wait for a device: draws are on the CPU.
        sizes = torch.bincount(operation + 1, minlength=len(self.pool) + 1).tolist()
        matrices: list[ops.Matrix] = []
        end = sizes[0]
        for entry, size in zip(self.pool, sizes[1:], strict=True):
            start, end = end, end + size
            if size and entry.operation is not None:
                group = work[start:end]
                group.copy_(entry.operation(group, values[start:end]))
            elif size and entry.geometry is not None:
                matrices += [entry.geometry(v, height, width) for v in value[start:end].tolist()]
        if matrices:
            moved = work[-len(matrices) :]
            matrix = torch.tensor(matrices, dtype=work.dtype).to(work.device, non_blocking=True)
            moved.copy_(ops.warp(moved, matrix))
