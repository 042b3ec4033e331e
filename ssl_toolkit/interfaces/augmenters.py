"""Augmenters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.config.options import Options

AugmentationParams = dict[str, Tensor]
"""Random parameters of an augmentation: CPU tensors whose first dimension counts the images."""


class Augmenter(nn.Module, ABC):
    """Base class of random augmentations.

    `draw` samples parameters, and `transform` applies them, so that they can be replayed.

    Args:
        config: Options, an instance of the class's ``Config``; the defaults if None.
        flip: True if mirrored images keep their class, a property of the data set.
    """

    plugin_kind: ClassVar[str] = "augmenters"
    Config: ClassVar[type[Options]] = Options
    wants_feedback: ClassVar[bool] = False
    """True if the engine passes predictions for augmented images to `feedback`."""
    channels: ClassVar[frozenset[int] | None] = frozenset({3})
    """Numbers of channels of the images that `transform` takes, None for any. A run with other
    images is refused."""

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__()
        self.config: Options = self.Config() if config is None else config
        self.flip = flip

    def omit_operations(self, pixels: PixelFormat) -> tuple[str, ...]:
        """Leave out operations that need RGB or 8 bits, and return their names.

        Called once after ``__init__`` if the images have another format. The run reports the names,
        so that no operation is missing silently. The default leaves out none.

        Args:
            pixels: Channels and bits of the images; `transform` gets floats in [0, 1] regardless.
        """
        return ()

    @abstractmethod
    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw parameters for a batch of images.

        With one seed, the rows for a smaller batch must be the first rows for a larger one, so that
        algorithms with different batch sizes share parameters. The columns of one
        ``torch.rand(count, k, generator=generator)`` satisfy this; several tensors drawn in turn,
        or `torch.randn`, don't.

        Args:
            count: Number of images.
            height: Height of the images in pixels.
            width: Width of the images in pixels.
            generator: CPU generator for all random numbers.

        Returns:
            CPU tensors with ``count`` rows, by name.
        """

    @abstractmethod
    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Apply parameters to images, deterministically and not in place.

        Args:
            images: (N, C, H, W) float in [0, 1], RGB if C is 3.
            draws: Parameters with N rows, from `draw`.

        Returns:
            Images in [0, 1] of the same shape, dtype and device.
        """

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Augment images.

        Args:
            images: (N, C, H, W) float in [0, 1], RGB if C is 3.
            generator: CPU generator; seeded from torch's global generator if None.

        Returns:
            Images in [0, 1] of the same shape, dtype and device.

        Raises:
            TypeError: The images are not floating point.
            ValueError: The shape is not (N, C, H, W) with one of the numbers of channels.
        """
        if not images.is_floating_point():
            raise TypeError(f"images must be float in [0, 1], got {images.dtype}; divide by 255")
        if images.ndim != 4 or (self.channels is not None and images.shape[1] not in self.channels):
            known = "C" if self.channels is None else " or ".join(map(str, sorted(self.channels)))
            raise ValueError(f"images must be (N, {known}, H, W), got {tuple(images.shape)}")
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ()).item()))
        count, _, height, width = images.shape
        return self.transform(images, self.draw(count, height, width, generator))

    def draw_probe(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw parameters for the images whose predictions are passed to `feedback`.

        Args:
            count: Number of images.
            height: Height of the images in pixels.
            width: Width of the images in pixels.
            generator: CPU generator for all random numbers.
        """
        return self.draw(count, height, width, generator)

    def feedback(self, draws: AugmentationParams, probs: Tensor, labels: Tensor) -> None:
        """Learn from the predictions for augmented labeled images.

        Called before the views of each batch are drawn if `wants_feedback` is True: several times
        per optimizer step with gradient accumulation.

        Args:
            draws: Parameters from `draw_probe`.
            probs: (B, C) float32 probabilities from the model in eval mode, without gradient.
            labels: (B,) int64.
        """
