"""The fixed strong augmentation of SimPLE: a sequence of kornia's transforms."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

from ssl_toolkit.interfaces import Augmenter, Draws


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

    Works in float32 or wider. kornia is imported by the first `draw` or `transform`.
    """

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """Draw kornia's parameters, under ``<step>.<parameter>``; each (count, ...) float or int.

        kornia draws from torch's global CPU generator; it is seeded from `generator` for the
        duration and put back afterwards.
        """
        seed = int(torch.randint(2**62, (), generator=generator).item())
        draws: Draws = {}
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would reseed the generators of the accelerators too.
            torch.default_generator.manual_seed(seed)
            for name, step in _steps(height, width):
                parameters = step.forward_parameters(torch.Size((count, 3, height, width)))
                for key in set(parameters) - _SHARED:
                    draws[f"{name}.{key}"] = parameters[key]
        if not self.flip:
            draws["mirror.batch_prob"].zero_()
        return draws

    def transform(self, images: Tensor, draws: Draws) -> Tensor:
        """Change images (N, 3, H, W) by N rows of draws; kornia keeps them on the CPU."""
        work = images.to(torch.promote_types(images.dtype, torch.float32))
        for name, step in _steps(*images.shape[-2:]):
            prefix = name + "."
            parameters = {
                k.removeprefix(prefix): v for k, v in draws.items() if k.startswith(prefix)
            }
            parameters["forward_input_shape"] = torch.tensor(images.shape)
            work = step(work, params=parameters)
        return work.clamp(0, 1).to(images.dtype)


# Not one row an image: the shape of the batch, and a step order that `order` overrides below.
_SHARED = {"forward_input_shape", "order"}


@lru_cache(maxsize=4)
def _steps(height: int, width: int) -> tuple[tuple[str, Any], ...]:
    """The transforms by name. Kept out of the augmenter, they reach no checkpoint or device."""
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
