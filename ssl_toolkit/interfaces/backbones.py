"""Backbones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor, nn

from ssl_toolkit.errors import ModelError

ChannelStatistics = tuple[float, float, float]


class Backbone(nn.Module, ABC):
    """Normalised images to feature vectors.

    A subclass sets `feature_dim` and implements `forward`; the core adds the normalisation before
    it and a linear classifier after it. The name under which it was registered reaches `build`,
    so that one class can serve a family of names.
    """

    plugin_kind: ClassVar[str] = "backbones"
    feature_dim: int
    mean: ChannelStatistics | None = None
    """Normalisation (RGB, of images in [0, 1]); None for the statistics of the data set."""
    std: ChannelStatistics | None = None
    default_image_size: int | None = None
    """Side in pixels that the backbone was made for; None for any."""

    @classmethod
    def build(cls, name: str, *, image_size: int | None = None, pretrained: bool = False) -> Self:
        """Make the backbone; this default calls the class without arguments.

        Args:
            name: the registered name.
            image_size: side of the square images in pixels, None for the backbone's own.
            pretrained: whether to load the published weights.

        Raises:
            ModelError: it has no published weights, or can't take the image size.
        """
        if pretrained:
            raise ModelError(
                f"backbone {name!r} has no published weights; leave --pretrained out, "
                "or give a file with --weights"
            )
        return cls()

    @classmethod
    def own_image_size(cls, name: str) -> int | None:
        """`default_image_size` of the backbone that `build` would make of a name."""
        return cls.default_image_size

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) normalised images to (N, feature_dim) features."""

    def classifier(self, num_classes: int) -> nn.Module | None:
        """A head of its own, (N, feature_dim) to (N, num_classes) logits; None for a linear one."""
        return None
