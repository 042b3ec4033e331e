"""A backbone without BatchNorm, so that features of an image only depend on this image."""

from __future__ import annotations

from torch import Tensor, nn

import ssl_toolkit
from ssl_toolkit import Backbone


@ssl_toolkit.register_backbone("plain")
class Plain(Backbone):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 12, 3)
        )
        self.feature_dim = 12

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).mean(dim=(2, 3))
