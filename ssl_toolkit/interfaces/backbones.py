"""Backbones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

from torch import Tensor, nn

from ssl_toolkit.config.images import Size
from ssl_toolkit.errors import ModelError

ChannelStatistics = tuple[float, ...]
"""A number for each channel."""


class Backbone(nn.Module, ABC):
    """Base class of networks that map normalized images to features.

    A subclass sets `feature_dim` and implements `forward`; the toolkit adds the normalization and a
    linear classifier. A class may be registered under several names; `build` gets the name.
    """

    plugin_kind: ClassVar[str] = "backbones"
    feature_dim: int
    mean: ChannelStatistics | None = None
    """RGB mean of images in [0, 1] for the normalization; None for that of the data set, which also
    normalizes images with another number of channels."""
    std: ChannelStatistics | None = None
    """RGB standard deviation of images in [0, 1]; None for that of the data set."""
    default_image_size: int | None = None
    """Height and width in pixels of the images that it requires; None for any."""
    timm_module: ClassVar[str | None] = None
    """Module whose import registers the architecture with timm, with the keys ``backbone.…`` and
    ``head.…``, so that timm can load exported models."""

    @classmethod
    def build(
        cls,
        name: str,
        *,
        image_size: Size | None = None,
        pretrained: bool = False,
        channels: int = 3,
    ) -> Self:
        """Return the backbone; by default, the class without arguments.

        An override without the parameter `channels` takes RGB only; ``--channels`` is then refused.

        Args:
            name: Registered name.
            image_size: Side of square images in pixels, or (height, width); None for the
                backbone's own.
            pretrained: True to load the published weights.
            channels: Number of channels of the images; 3 for RGB.

        Raises:
            ModelError: It has no published weights, or can't take the size or the channels.
        """
        if channels != 3:
            raise ModelError(f"backbone {name!r} takes images with 3 channels, not {channels}")
        if pretrained:
            raise ModelError(
                f"backbone {name!r} has no published weights; leave --pretrained out, "
                "or give a file with --weights"
            )
        return cls()

    @classmethod
    def own_image_size(cls, name: str) -> int | None:
        """Return the `default_image_size` of the backbone of this name."""
        return cls.default_image_size

    @classmethod
    def takes_other_sizes(cls, name: str) -> bool:
        """Return True if published weights of this name work for images of other sizes."""
        return False

    @classmethod
    def batchnorm_momentum(cls, steps: int) -> float | None:
        """Return the default momentum of BatchNorm in a run of some steps.

        Args:
            steps: Number of optimizer steps.

        Returns:
            Weight of a batch in the running statistics, in (0, 1], or None to leave each layer's
            own.
        """
        return None

    def stage_modules(self) -> Sequence[nn.Module]:
        """Return consecutive modules whose outputs describe an image, from textures to shapes.

        Each returns maps (N, C, H, W) or tokens (N, L, C), once in a forward. ``model.stages``
        appends the means of the last ones to the features, and ``--drop-strangers`` compares images
        by them. By default, there are none, and it compares the features.
        """
        return ()

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return the features (N, feature_dim) of normalized images (N, C, H, W)."""

    def classifier(self, num_classes: int) -> nn.Module | None:
        """Return a head that maps features to logits (N, num_classes); None for a linear layer."""
        return None
