"""Augmenters that break one rule of their contract each, and a valid one."""

from __future__ import annotations

import random
import secrets
from abc import abstractmethod

import torch
from contract_fakes import breaks
from torch import Tensor

from ssl_toolkit import AugmentationParams, Augmenter, Options


class Change(Augmenter):
    """Darkens images."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {"gain": 0.5 + 0.5 * torch.rand(count, generator=generator)}

    @abstractmethod
    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor: ...

    def plain(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        gain = draws["gain"].to(images.device, images.dtype)
        return (images * gain.view(-1, 1, 1, 1)).clamp(0, 1)


class Dark(Change):
    """It breaks no rule."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws)


@breaks("draws_rows_on_cpu")
class OtherNames(Change):
    """It draws something else for a single image."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        draws = super().draw(count, height, width, generator)
        return draws | ({"single": torch.zeros(1)} if count == 1 else {})

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws)


@breaks("draws_reproducibly")
class ByChance(Change):
    """The range of its draws differs between instances."""

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__(config, flip=flip)
        self.register_buffer("start", torch.tensor(secrets.randbelow(2**20) / 2**22))

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        draws = super().draw(count, height, width, generator)
        return {"gain": draws["gain"] - self.start.cpu()}  # type: ignore[operator]

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws)


@breaks("draws_prefix_for_smaller_batch")
class InTurn(Change):
    """It draws one parameter after the other."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        offset = torch.rand(count, generator=generator)
        return {"offset": offset, **super().draw(count, height, width, generator)}

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws)


@breaks("draws_prefix_for_smaller_batch")
class Normal(Change):
    """It draws normal numbers, which torch generates in another order from 16 on."""

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {"gain": torch.randn(count, generator=generator).sigmoid()}

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws)


@breaks("transforms_deterministically")
class Flickering(Change):
    """It draws in transform."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return (self.plain(images, draws) - 1e-10 * secrets.randbelow(900_000)).clamp(0, 1)


@breaks("uses_no_global_generator")
class GlobalDraws(Change):
    """It draws with Python's global generator."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        random.random()
        return self.plain(images, draws)


@breaks("preserves_shape_and_dtype")
class Single(Change):
    """It always returns float32."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws).float()


@breaks("returns_valid_range")
class Bright(Change):
    """It leaves the range [0, 1]."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return images * (0.5 + draws["gain"].to(images).view(-1, 1, 1, 1))


@breaks("does_not_modify_inputs")
class InPlace(Change):
    """It writes into the images."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images.clamp_(0, 1), draws)


@breaks("transforms_images_independently")
class Equalizing(Change):
    """It subtracts the mean of the batch from each image."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain((images - images.mean() + 0.5).clamp(0, 1), draws)


@breaks("supports_declared_channels")
class Declared(Change):
    """It declares any number of channels, and makes gray images of three."""

    channels = None

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        changed = self.plain(images, draws)
        return changed if images.shape[1] == 3 else changed[:, :1]


@breaks("supports_any_image_size")
class Turning(Change):
    """It adds the transpose."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain((images + images.transpose(2, 3)) / 2, draws)


@breaks("avoids_host_sync")
class Deciding(Change):
    """It depends on the mean of the images."""

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return images.clone() if images.mean() < 0.1 else self.plain(images, draws)


@breaks("restores_state")
class Learning(Change):
    """It stores learned state in a plain attribute."""

    wants_feedback = True
    level = 1.0

    def feedback(self, draws: AugmentationParams, probs: Tensor, labels: Tensor) -> None:
        self.level *= 0.9

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws) * self.level


@breaks("accepts_flip")
class Mirroring(Change):
    """It ignores flip."""

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__(config)

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        return self.plain(images, draws)
