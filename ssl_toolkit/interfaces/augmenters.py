"""Augmenters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ssl_toolkit.config.options import Options

AugmentationParams = dict[str, Tensor]
"""Random parameters of an augmentation: CPU tensors whose first dimension counts the images."""


class Augmenter(nn.Module, ABC):
    """Random changes of images. Draws first, then transforms: draws can be replayed and joined.

    Args:
        config: options, an instance of the class's ``Config``; None for the defaults.
        flip: whether a mirrored image still shows its class (a property of the data set).
    """

    plugin_kind: ClassVar[str] = "augmenters"
    Config: ClassVar[type[Options]] = Options
    wants_feedback: ClassVar[bool] = False
    """True if the engine reports the model's predictions on its views through `feedback`."""

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__()
        self.config = self.Config() if config is None else config
        self.flip = flip

    @abstractmethod
    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw the parameters for some images, one row each.

        Under one seed the rows of a shorter draw are the first rows of a longer one: algorithms
        that take different numbers of images per step then share the draws of the first. A single
        ``torch.rand(count, k, generator=generator)`` with a column for each parameter does that;
        one tensor drawn after another doesn't, and neither does `torch.randn`.

        Args:
            count: number of images, the rows of each draw.
            height: of the images, in pixels.
            width: of the images, in pixels.
            generator: on the CPU; all randomness comes from it.
        """

    @abstractmethod
    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Change the images (N, 3, H, W) by N rows of draws; no randomness in here.

        Returns:
            Same shape, dtype and device, in [0, 1]; the input is left alone.
        """

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw and transform.

        Args:
            images: (N, 3, H, W) float in [0, 1].
            generator: a CPU generator; None seeds one from torch's global state.

        Raises:
            TypeError: the images are not floating point.
            ValueError: the shape is not (N, 3, H, W).
        """
        if not images.is_floating_point():
            raise TypeError(f"images must be float in [0, 1], got {images.dtype}; divide by 255")
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be (N, 3, H, W), got {tuple(images.shape)}")
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ()).item()))
        count, _, height, width = images.shape
        return self.transform(images, self.draw(count, height, width, generator))

    def draw_probe(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw, as `draw` does (`count`, `height`, `width`, `generator`), for the probe views.

        The model's answers to them go to `feedback`.
        """
        return self.draw(count, height, width, generator)

    def feedback(self, draws: AugmentationParams, probs: Tensor, labels: Tensor) -> None:
        """Learn from the model's predictions on the probe views of labeled images.

        Called once per batch before its views are drawn, if `wants_feedback`: several times per
        optimizer step under gradient accumulation.

        Args:
            draws: what `draw_probe` gave.
            probs: (B, C) float32 probabilities of the live model in eval mode, no gradient.
            labels: (B,) int64.
        """
