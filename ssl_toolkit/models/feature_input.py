"""A backbone for data that are features already, not images."""

from __future__ import annotations

import re
from typing import Self

from torch import Tensor

from ssl_toolkit.config.images import Size
from ssl_toolkit.errors import ModelError
from ssl_toolkit.interfaces import Backbone

_NAME = re.compile(r"features_([1-9]\d*)")


def feature_backbone(length: int) -> str:
    """Return the name of the backbone for features of a length, such as ``features_1280``."""
    return f"features_{length}"


def feature_length(backbone_name: str) -> int | None:
    """Return D if a name is one of `feature_backbone`; None for a backbone that takes images."""
    match = _NAME.fullmatch(backbone_name)
    return None if match is None else int(match[1])


def input_text(backbone_name: str, images: str) -> str:
    """Describe the input of a model; `images` if it takes images."""
    length = feature_length(backbone_name)
    return images if length is None else f"(N, {length}) float32 features"


class FeatureInput(Backbone):
    """No network: a classifier with it is a head over features (N, `feature_dim`).

    Args:
        feature_dim: D, the length of a feature vector.
    """

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim

    @classmethod
    def build(
        cls,
        name: str,
        *,
        image_size: Size | None = None,
        pretrained: bool = False,
        channels: int = 3,
    ) -> Self:
        """Read the length from a name such as ``features_1280``; there are no weights to load."""
        length = feature_length(name)
        assert length is not None
        return cls(length)

    def forward(self, images: Tensor) -> Tensor:
        """Refuse images: features never reach a backbone.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            f"the model takes features (N, {self.feature_dim}), not images; compute them as for "
            "training (ssl-toolkit embed)"
        )
