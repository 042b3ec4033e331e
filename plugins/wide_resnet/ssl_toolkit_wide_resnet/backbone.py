"""Wide residual networks for small images, as semi-supervised papers use them."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from ssl_toolkit import Backbone, ModelError, PluginError


class WideResNet(Backbone):
    """WRN-depth-width with leaky ReLU (Zagoruyko and Komodakis 2016, arXiv:1605.07146).

    A 3×3 convolution with 16 channels, then three stages of (depth - 4) / 6 pre-activation blocks
    with 16, 32, 64 times `width` channels and strides 1, 2, 2, BatchNorm, leaky ReLU (slope 0.1),
    mean over the map. Convolutions have no bias. Where the number of channels changes, the
    shortcut is a 1×1 convolution without BatchNorm. The shortcut takes the activated input in the
    first block of the first stage and the raw input everywhere else.

    The variant of the semi-supervised literature differs from the paper of 2016 in the leaky ReLU
    and has no dropout. BatchNorm's epsilon is 1e-5 as in SimPLE's published code, where the
    TensorFlow code of MixMatch and FixMatch has 1e-3.

    Initial weights: convolutions N(0, 2 / (k² · channels out)), BatchNorm 1 and 0, head Xavier
    normal with bias 0; drawn from torch's global CPU generator.

    Args:
        depth: number of layers, 6 n + 4 for n blocks per stage, at least 10.
        width: factor of the channels, at least 1.
        batchnorm_momentum: weight of a new batch in the running statistics, in (0, 1]; 0.001 as in
            the papers.
        channels: number of channels of the images.

    Raises:
        PluginError: the depth or the width is invalid.
    """

    timm_module: ClassVar[str | None] = "ssl_toolkit_wide_resnet.timm_registration"

    def __init__(
        self, depth: int, width: int, batchnorm_momentum: float = 0.001, channels: int = 3
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1 or width < 1:
            raise PluginError(
                f"no wide ResNet of depth {depth} and width {width}: "
                "the depth must be 6n + 4 (10, 16, 22, 28, …) and the width at least 1"
            )
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        widths = [16, 16 * width, 32 * width, 64 * width]
        self.stages = nn.ModuleList(
            nn.Sequential(
                *(
                    _Block(
                        widths[stage] if block == 0 else widths[stage + 1],
                        widths[stage + 1],
                        stride=2 if stage > 0 and block == 0 else 1,
                        activate_shortcut=stage == 0 and block == 0,
                    )
                    for block in range(blocks)
                )
            )
            for stage in range(3)
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.activation = _activation()
        self.feature_dim = widths[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0.0, (2 / fan_out) ** 0.5)
            elif isinstance(module, nn.BatchNorm2d):
                module.momentum = batchnorm_momentum

    @classmethod
    def build(
        cls,
        name: str,
        *,
        image_size: int | tuple[int, int] | None = None,
        pretrained: bool = False,
        channels: int = 3,
    ) -> Self:
        """Return the network of a name such as ``wrn_28_2``.

        Args:
            name: ``wrn_<depth>_<width>``.
            image_size: side in pixels, or (height, width); any from 1 up works.
            pretrained: must be False, because no weights are published.
            channels: number of channels of the images.

        Raises:
            PluginError: the name is not that of a wide ResNet.
            ModelError: `pretrained` is True, or the image size is below 1.
        """
        match = re.fullmatch(r"wrn_(\d+)_(\d+)", name)
        if match is None:
            raise PluginError(f"no wide ResNet is called {name!r}: write wrn_<depth>_<width>")
        if pretrained:
            raise ModelError(
                f"backbone {name!r} has no published weights; leave --pretrained out, "
                "or give a file with --weights"
            )
        side = min(image_size) if isinstance(image_size, tuple) else image_size
        if side is not None and side < 1:
            raise ModelError(
                f"backbone {name!r} can't take image size {image_size}: it must be at least 1"
            )
        return cls(int(match[1]), int(match[2]), channels=channels)

    @classmethod
    def batchnorm_momentum(cls, steps: int) -> float:
        """Return 100 / steps, within [0.001, 0.1]: the paper's 0.001 is too slow for short runs.

        Args:
            steps: Number of optimizer steps.
        """
        return min(0.1, max(0.001, 100 / steps))

    def forward(self, images: Tensor) -> Tensor:
        """Map normalized images (N, C, H, W) to features (N, 64 · width)."""
        x = self.conv(images)
        for stage in self.stages:
            x = stage(x)
        features: Tensor = self.activation(self.norm(x)).mean(dim=(2, 3))
        return features

    def stage_modules(self) -> list[nn.Module]:
        """Return the three stages."""
        return [*self.stages]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return which parameters form a layer, as timm describes it, for layer-wise rates.

        Args:
            coarse: True for a layer per stage, not per block.
        """
        blocks = r"^stages\.(\d+)" if coarse else r"^stages\.(\d+)\.(\d+)"
        return {"stem": r"^conv\.", "blocks": [(blocks, None), (r"^norm", (99999,))]}

    def classifier(self, num_classes: int) -> nn.Linear:
        """Return a linear head with Xavier normal weights and bias 0."""
        head = nn.Linear(self.feature_dim, num_classes)
        nn.init.xavier_normal_(head.weight)
        nn.init.zeros_(head.bias)
        return head


class _Block(nn.Module):
    def __init__(
        self, channels_in: int, channels_out: int, *, stride: int, activate_shortcut: bool
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Identity()
            if channels_in == channels_out and stride == 1
            else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
        )
        self.activation = _activation()
        self.activate_shortcut = activate_shortcut

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.norm1(x))
        residual = self.conv2(self.activation(self.norm2(self.conv1(active))))
        summed: Tensor = residual + self.shortcut(active if self.activate_shortcut else x)
        return summed


def _activation() -> nn.Module:
    # In place: it always follows a BatchNorm, whose backward does not need its own output.
    return nn.LeakyReLU(0.1, inplace=True)
