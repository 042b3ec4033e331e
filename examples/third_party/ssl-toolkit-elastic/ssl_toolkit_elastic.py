"""Elastic deformations (Simard, Steinkraus and Platt, ICDAR 2003, section 2)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import AugmentationParams, Augmenter, Options, option


@final
class Elastic(Augmenter):
    """Deform images with a smooth random displacement field, as in handwriting.

    Simard et al. smooth uniform noise at every pixel with a Gaussian. Here the noise is drawn on a
    coarse grid and interpolated bicubically, which needs no filter and works for any image size.
    Images are never mirrored, regardless of `flip`.
    """

    api_version = (1, 0)

    class Config(Options):
        """Options of `Elastic`."""

        strength: float = option(
            0.1, ge=0, le=1, help="largest displacement of the grid, as a fraction of the side"
        )
        grid: int = option(4, ge=2, help="grid points along each side; more deform finer details")

    config: Config

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw ``field``, (count, 2, grid, grid) in [-1, 1]: displacements right and down."""
        side = self.config.grid
        return {"field": 2 * torch.rand(count, 2, side, side, generator=generator) - 1}

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Sample images (N, 3, H, W) at displaced positions, bilinearly; the border is replicated.

        Values are averages of neighboring pixels, so they stay in [0, 1].
        """
        field = draws["field"].to(images, non_blocking=True)
        field = F.interpolate(field, images.shape[-2:], mode="bicubic", align_corners=True)
        # Coordinates run from -1 to 1, so a fraction of the side is twice that.
        displaced = field.movedim(1, -1) * (2 * self.config.strength)
        coordinates = F.affine_grid(
            torch.eye(2, 3).to(images).expand(len(images), 2, 3),
            list(images.shape),
            align_corners=False,
        )
        sampled = F.grid_sample(
            images, coordinates + displaced, padding_mode="border", align_corners=False
        )
        return sampled.clamp(0, 1)
