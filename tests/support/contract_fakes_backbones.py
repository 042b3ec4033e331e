"""Backbones that break one rule of their contract each, and a valid one."""

from __future__ import annotations

import contextlib
import socket
from abc import abstractmethod
from typing import Self

import numpy as np
import torch
from contract_fakes import breaks
from torch import Tensor, nn

from ssl_toolkit import Backbone
from ssl_toolkit.errors import ModelError


class Net(Backbone):
    """A convolution."""

    feature_dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor: ...

    def plain(self, images: Tensor) -> Tensor:
        features: Tensor = self.norm(self.conv(images)).relu().mean(dim=(2, 3))
        return features


class SmallNet(Net):
    """It breaks no rule."""

    def stage_modules(self) -> list[nn.Module]:
        return [self.conv, self.norm]

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)


@breaks("returns_features")
class Wider(Net):
    """Its feature_dim is five, but it returns eight features."""

    feature_dim = 5

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)

    def classifier(self, num_classes: int) -> nn.Module:
        return nn.Linear(8, num_classes)


@breaks("returns_outputs_of_stages")
class Unused(Net):
    """It lists a module that has no forward."""

    def stage_modules(self) -> list[nn.Module]:
        return [nn.ModuleList([self.conv])]

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)


@breaks("returns_outputs_of_stages")
class Vectors(Net):
    """It lists a module that returns vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)

    def stage_modules(self) -> list[nn.Module]:
        return [self.conv, self.last]

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.plain(images))  # type: ignore[no-any-return]


@breaks("returns_outputs_of_stages")
class NarrowHead(Net):
    """Its head takes no features of stages."""

    def stage_modules(self) -> list[nn.Module]:
        return [self.conv]

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)

    def classifier(self, num_classes: int) -> nn.Module:
        return nn.Linear(8, num_classes)


@breaks("initializes_reproducibly")
class NumpyWeights(Net):
    """It draws a weight with numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.bias.data.fill_(float(np.random.rand()))

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)


@breaks("downloads_nothing")
class Calling(Net):
    """It opens a connection."""

    @classmethod
    def build(cls, name: str, *, image_size: int | None = None, pretrained: bool = False) -> Self:
        with contextlib.suppress(OSError), socket.socket() as line:
            line.connect(("127.0.0.1", 9))
        return cls()

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)


@breaks("trains_all_parameters")
class Spare(Net):
    """It has an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)


@breaks("evaluates_deterministically")
class Centered(Net):
    """It subtracts the mean over the batch."""

    def forward(self, images: Tensor) -> Tensor:
        features = self.plain(images)
        return features - features.mean(dim=0)


@breaks("restores_state")
class Scaled(Net):
    """It stores a tensor that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.rand(())

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images) * self.factor


@breaks("does_not_modify_images")
class Overwriting(Net):
    """It writes into its input."""

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images.clamp_(-9, 9))


@breaks("declares_valid_statistics")
class Levels(Net):
    """Its statistics are for levels from 0 to 255."""

    mean = (125.0, 123.0, 114.0)
    std = (60.0, 60.0, 60.0)

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)


@breaks("supports_any_class_count")
class TenHeads(Net):
    """Its head has ten outputs."""

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)

    def classifier(self, num_classes: int) -> nn.Module:
        return nn.Linear(8, 10)


@breaks("stays_finite_in_bf16")
class Dividing(Net):
    """It divides by a difference that is 0 in bf16."""

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv(images)
        step = torch.full((), 1.001, dtype=maps.dtype) - 1
        return (self.norm(maps) / step).mean(dim=(2, 3))


@breaks("supports_or_rejects_image_size")
class FixedSide(Net):
    """It only works with 32 pixels, without an error for other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.ones(32, 32))

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images * self.places)


@breaks("uses_or_rejects_channels")
class ThreeOfFour(Net):
    """It accepts four channels, and drops the last."""

    @classmethod
    def build(
        cls,
        name: str,
        *,
        image_size: int | None = None,
        pretrained: bool = False,
        channels: int = 3,
    ) -> Self:
        if channels not in (3, 4):
            raise ModelError(f"backbone {name!r} takes 3 or 4 channels, not {channels}")
        return cls()

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images[:, :3])


@breaks("uses_or_rejects_channels")
class AlwaysRGB(Net):
    """Its first layer has three channels whatever it is built for."""

    @classmethod
    def build(
        cls,
        name: str,
        *,
        image_size: int | None = None,
        pretrained: bool = False,
        channels: int = 3,
    ) -> Self:
        return cls()

    def forward(self, images: Tensor) -> Tensor:
        return self.plain(images)
