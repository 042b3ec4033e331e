"""Backbones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor, nn

from ssl_toolkit.errors import ModelError

ChannelStatistics = tuple[float, float, float]


class Backbone(nn.Module, ABC):
    """Normalized images to feature vectors.

    A subclass sets `feature_dim` and implements `forward`; the core adds the normalization before
    it and a linear classifier after it. The name under which it was registered reaches `build`,
    so that one class can serve a family of names.
    """

    plugin_kind: ClassVar[str] = "backbones"
    feature_dim: int
    mean: ChannelStatistics | None = None
    """Normalization (RGB, of images in [0, 1]); None for the statistics of the data set."""
    std: ChannelStatistics | None = None
    default_image_size: int | None = None
    """Side in pixels that the backbone was made for; None for any."""
    timm_module: ClassVar[str | None] = None
    """Module that registers the architecture with timm when it is imported, with a model whose
    weights have the keys ``backbone.…`` and ``head.…``: timm then opens exported models."""
    used_stages: int = 0
    """Last stages whose means over positions are appended to the features; see `use_stages`."""

    @classmethod
    def build(cls, name: str, *, image_size: int | None = None, pretrained: bool = False) -> Self:
        """Return the backbone; by default, the class without arguments.

        Args:
            name: Registered name.
            image_size: Side of the square images in pixels, None for the backbone's own.
            pretrained: True to load the published weights.

        Raises:
            ModelError: It has no published weights, or can't take the image size.
        """
        if pretrained:
            raise ModelError(
                f"backbone {name!r} has no published weights; leave --pretrained out, "
                "or give a file with --weights"
            )
        return cls()

    @classmethod
    def own_image_size(cls, name: str) -> int | None:
        """Return the `default_image_size` of the backbone that `build` makes of a name."""
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

    def use_stages(self, count: int) -> tuple[int, ...]:
        """Let `forward` append what the last stages see, averaged over positions.

        Early features say more of textures and shapes, late ones more of the classes that the
        weights were trained for. A backbone that has stages sets `used_stages` and `feature_dim`.

        Args:
            count: stages, 0 for none.

        Returns:
            The sizes of the blocks of a feature vector: the features proper, then each stage; the
            features alone where the backbone has no stages to give.
        """
        return (self.feature_dim,)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) normalized images to (N, feature_dim) features."""

    def classifier(self, num_classes: int) -> nn.Module | None:
        """A head of its own, (N, feature_dim) to (N, num_classes) logits; None for a linear one."""
        return None
