"""Four convolutions, the usual network of few-shot learning."""

from __future__ import annotations

from typing import Self, final

from torch import Tensor, nn

from ssl_toolkit import Backbone, ModelError


@final
class Conv4(Backbone):
    """Four blocks of 3 x 3 convolution, BatchNorm, ReLU and 2 x 2 pooling, then a global mean.

    The embedding network of Snell et al. (Prototypical Networks, NeurIPS 2017, section 3.1), which
    has no global mean. Any image size works: a last odd row or column is pooled alone.

    Args:
        width: channels of every block, and the number of features.
    """

    api_version = (1, 0)

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.feature_dim = width
        self.blocks = nn.Sequential(
            *(_block(inputs, width) for inputs in (3, width, width, width)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    @classmethod
    def build(cls, name: str, *, image_size: int | None = None, pretrained: bool = False) -> Self:
        """Build the network with this name: ``conv4_32`` has 32 channels.

        Raises:
            ModelError: `pretrained` is set, but there are no published weights.
        """
        if pretrained:
            raise ModelError(f"backbone {name!r} has no published weights; omit --pretrained")
        return cls(int(name.rpartition("_")[2]))

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 3, H, W) normalized images to (N, width) features."""
        features: Tensor = self.blocks(images)
        return features


def _block(inputs: int, outputs: int) -> nn.Sequential:
    # BatchNorm would remove a bias.
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    # Round up: an image of 8 pixels has a single position before the last pooling.
    pooling = nn.MaxPool2d(2, ceil_mode=True)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), pooling)
