"""Register the wide ResNets with timm when this module is imported.

>>> import timm
>>> import ssl_toolkit_wide_resnet.timm_registration  # noqa: F401
>>> timm.create_model("wrn_10_1", num_classes=5).num_features
64

A model exported from a run on a wide ResNet opens with ``timm.create_model("local-dir:FOLDER",
pretrained=True)`` after that import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm.models
from torch import Tensor, nn

from ssl_toolkit_wide_resnet.backbone import WideResNet

NAMES = ("wrn_10_1", "wrn_16_2", "wrn_28_2", "wrn_28_8")


class WideResNetForTimm(nn.Module):
    """Wide ResNet with timm's interface; its state dict has the keys of `Classifier`.

    Args:
        name: ``wrn_<depth>_<width>``.
        num_classes: number of classes of the head, 0 for none.
        in_chans: number of channels of the images.
    """

    def __init__(self, name: str, num_classes: int = 10, in_chans: int = 3) -> None:
        super().__init__()
        self.backbone = WideResNet.build(name, channels=in_chans)
        self.num_features = self.head_hidden_size = self.backbone.feature_dim
        self.reset_classifier(num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one for `num_classes` classes, 0 for none.

        Raises:
            ValueError: the pooling is not the mean.
        """
        if global_pool not in (None, "avg"):
            raise ValueError(f"wide ResNets pool by the mean only, not by {global_pool!r}")
        self.num_classes = num_classes
        self.head: nn.Module = (
            self.backbone.classifier(num_classes) if num_classes > 0 else nn.Identity()
        )

    def forward_features(self, images: Tensor) -> Tensor:
        """Map normalized images (N, C, H, W) to pooled features (N, num_features)."""
        features: Tensor = self.backbone(images)
        return features

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Map features to logits (N, num_classes); return the features under `pre_logits`."""
        logits: Tensor = features if pre_logits else self.head(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Map normalized images (N, C, H, W) to logits (N, num_classes)."""
        return self.forward_head(self.forward_features(images))


# `register_model` reads this name from the registering module.
default_cfgs = timm.models.generate_default_cfgs(
    {
        name: {
            "input_size": (3, 32, 32),
            "num_classes": 10,
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "first_conv": "backbone.conv",
            "classifier": "head",
        }
        for name in NAMES
    }
)


def _register(name: str) -> Callable[..., Any]:
    def create(pretrained: bool = False, **kwargs: Any) -> Any:
        return timm.models.build_model_with_cfg(
            WideResNetForTimm, name, pretrained, name=name, **kwargs
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"{name} (see `WideResNet`)."
    return timm.models.register_model(create)


for _name in NAMES:
    _register(_name)
