"""The fixed strong augmentation of SimPLE: a sequence of kornia's transforms."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.interfaces import AugmentationParams, Augmenter


@final
class Fixed(Augmenter):
    """Applies the same sequence of random transforms to each image, with its own parameters.

    The table of augmentations of SimPLE (Hu et al., CVPR 2021, https://arxiv.org/abs/2103.16725,
    appendix), in order: mirror (p 0.5, only if `flip`), square crop of 80 to 100 % of the area
    resized back, Gaussian blur 3x3 with sigma 1.5 (p 0.5, black beyond the border), contrast times
    0.75 to 1.5, an erased black rectangle (p 0.1), and an affine map (p 0.5: ±25 degrees, ±20 %
    translation, scale 0.8 to 1.2, ±8 degrees of shear along x; bilinear, black outside).

    kornia's classes of today with the meaning of those of 2021: contrast is `ColorJiggle`'s, which
    multiplies and clamps. Every gate and parameter is drawn for each image; the authors' code drew
    the blur once for a batch of four and more. On an image that isn't square the crop is as large
    a square as fits and is stretched.

    kornia, which the first `draw` imports, only draws the parameters. The images are transformed
    here, in float32 or wider, several times as fast and up to rounding the same: kornia's pixels
    differ by at most 1e-5 at 32 px, 2.5e-5 at 84 and 7e-5 at 224 (measured on noise, where the
    difference of neighboring pixels is largest).
    """

    channels: ClassVar[frozenset[int] | None] = None

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw kornia's parameters, under ``<step>.<parameter>``; each (count, ...) float or int.

        kornia draws from torch's global CPU generator, which is seeded from `generator` and
        restored afterwards. It draws one parameter after the other for all images, so that each
        would depend on their number: blocks of a fixed size are drawn, and the first rows used.
        """
        blocks: list[AugmentationParams] = []
        with torch.random.fork_rng(devices=[]):
            for _ in range(max(1, math.ceil(count / _BLOCK))):
                seed = int(torch.randint(2**62, (), generator=generator).item())
                # Not torch.manual_seed, which would reseed the generators of accelerators too.
                torch.default_generator.manual_seed(seed)
                blocks.append(_draw_block(height, width))
        draws = blocks[0]
        if len(blocks) > 1:
            draws = {key: torch.cat([block[key] for block in blocks]) for key in draws}
        draws = {key: value[:count] for key, value in draws.items()}
        if not self.flip:
            draws["mirror.batch_prob"].zero_()
        return draws

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Change images (N, C, H, W) by N rows of draws; nothing is read back from the device."""
        work = images.to(torch.promote_types(images.dtype, torch.float32))
        return _transformed(work, draws).clamp(0, 1).to(images.dtype)


# Not one row per image: the shape of the batch, and a step order that `order` overrides below.
_SHARED = {"forward_input_shape", "order"}

_BLOCK = 512
"""Images that kornia draws for at once: 8 take hardly less time. Another size changes all draws."""


def _draw_block(height: int, width: int) -> AugmentationParams:
    drawn: AugmentationParams = {}
    for name, step in steps(height, width):
        parameters = step.forward_parameters(torch.Size((_BLOCK, 3, height, width)))
        drawn |= {f"{name}.{key}": parameters[key] for key in set(parameters) - _SHARED}
    return drawn


@lru_cache(maxsize=4)
def steps(height: int, width: int) -> tuple[tuple[str, Any], ...]:
    """Return kornia's transforms by name. Outside the augmenter, they reach no checkpoint."""
    import kornia.augmentation as K

    return (
        ("mirror", K.RandomHorizontalFlip(p=0.5)),
        ("crop", K.RandomResizedCrop((height, width), scale=(0.8, 1.0), ratio=(1.0, 1.0))),
        ("blur", K.RandomGaussianBlur((3, 3), (1.5, 1.5), border_type="constant", p=0.5)),
        # order=(1,) is contrast alone: otherwise one order is drawn for the whole batch.
        ("contrast", K.ColorJiggle(contrast=(0.75, 1.5), order=(1,))),
        ("erase", K.RandomErasing(scale=(0.02, 0.33), ratio=(0.3, 3.3), value=0.0, p=0.1)),
        (
            "affine",
            K.RandomAffine(
                degrees=(-25.0, 25.0),
                translate=(0.2, 0.2),
                scale=(0.8, 1.2),
                shear=(-8.0, 8.0),
                p=0.5,
            ),
        ),
    )


def _transformed(images: Tensor, draws: AugmentationParams) -> Tensor:
    """Apply the steps without a loop over images; those that a gate leaves out do not change."""
    height, width = images.shape[-2:]
    work = _sampled(images, _crop_maps(draws, height, width), align_corners=True)
    rows = _gated(draws["blur.batch_prob"], work)
    work.index_copy_(0, rows, _blurred(work.index_select(0, rows)))
    contrast = draws["contrast.contrast_factor"].to(work.device, work.dtype, non_blocking=True)
    work.mul_(contrast.view(-1, 1, 1, 1)).clamp_(0, 1)
    work.mul_(_outside_rectangle(draws, height, width).to(work.device, non_blocking=True))
    rows = _gated(draws["affine.batch_prob"], work)
    maps = _affine_maps(draws, height, width)[draws["affine.batch_prob"] > 0.5]
    return work.index_copy_(
        0, rows, _sampled(work.index_select(0, rows), maps, align_corners=False)
    )


def _gated(gate: Tensor, images: Tensor) -> Tensor:
    """Return the rows whose gate is open, without waiting for the device."""
    return (gate > 0.5).nonzero().flatten().to(images.device, non_blocking=True)


def _sampled(images: Tensor, maps: Tensor, *, align_corners: bool) -> Tensor:
    """Return bilinear samples at (ax + by + c, dx + ey + f) for pixel (x, y), black outside.

    Coordinates run from -1 to 1, as in `torch.nn.functional.grid_sample`; on (n, C, H, W) images
    with (n, 2, 3) maps on the CPU.
    """
    height, width = images.shape[-2:]
    maps = maps.to(images.device, images.dtype, non_blocking=True)[..., None, None]
    x, y = (
        torch.linspace(-1, 1, size, device=images.device, dtype=images.dtype)
        * (1 if align_corners else 1 - 1 / size)
        for size in (width, height)
    )
    grid = maps[:, :, 0] * x + maps[:, :, 1] * y[:, None] + maps[:, :, 2]
    return F.grid_sample(images, grid.permute(0, 2, 3, 1), align_corners=align_corners)


def _crop_maps(draws: AugmentationParams, height: int, width: int) -> Tensor:
    """Return maps that mirror, then stretch the crop to the whole image, corner to corner."""
    corner = draws["crop.src"][:, 0]
    extent = draws["crop.src"][:, 2] - corner
    last = torch.tensor([width - 1, height - 1]).clamp(min=1)
    scale, middle = extent / last, (2 * corner + extent) / last - 1
    sign = 1 - 2 * draws["mirror.batch_prob"]
    nothing = torch.zeros_like(sign)
    across = torch.stack([sign * scale[:, 0], nothing, sign * middle[:, 0]], dim=1)
    down = torch.stack([nothing, scale[:, 1], middle[:, 1]], dim=1)
    return torch.stack([across, down], dim=1)


def _affine_maps(draws: AugmentationParams, height: int, width: int) -> Tensor:
    """Return the inverse of: shear along x, scale and rotate about the center, then translate."""
    angle = torch.deg2rad(draws["affine.angle"])
    shear = torch.tan(torch.deg2rad(draws["affine.shear_x"]))
    cos, sin, scale = angle.cos(), angle.sin(), draws["affine.scale"][:, :1, None]
    upper = torch.stack([cos - shear * sin, sin + shear * cos], dim=1)
    linear = torch.stack([upper, torch.stack([-sin, cos], dim=1)], dim=1) / scale
    half = torch.tensor([width, height]) / 2
    moved = -(linear @ draws["affine.translations"][:, :, None]) / half[:, None]
    return torch.cat([linear * half / half[:, None], moved], dim=2)


def _blurred(images: Tensor) -> Tensor:
    """Gaussian blur 3x3 with sigma 1.5, black beyond the border."""
    side = math.exp(-1 / (2 * 1.5**2))
    total = 1 + 2 * side
    for dim in (2, 3):
        inner = images.shape[dim] - 1
        lower, upper = (images.narrow(dim, start, inner) for start in (0, 1))
        mixed = images / total
        mixed.narrow(dim, 1, inner).add_(lower, alpha=side / total)
        mixed.narrow(dim, 0, inner).add_(upper, alpha=side / total)
        images = mixed
    return images


def _outside_rectangle(draws: AugmentationParams, height: int, width: int) -> Tensor:
    """(N, 1, H, W): False in the erased rectangle of each image whose gate is open."""
    inside = []
    for start, extent, size in (("xs", "widths", width), ("ys", "heights", height)):
        first = draws[f"erase.{start}"][:, None]
        pixels = torch.arange(size)
        inside.append((pixels >= first) & (pixels < first + draws[f"erase.{extent}"][:, None]))
    columns, rows = inside
    erased = rows[:, :, None] & columns[:, None] & (draws["erase.batch_prob"] > 0.5)[:, None, None]
    return ~erased[:, None]
