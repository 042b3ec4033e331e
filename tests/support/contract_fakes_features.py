"""Algorithms on frozen features that break one rule of their contract each, and a valid one."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from contract_fakes import breaks
from pydantic import ConfigDict
from torch import Tensor, nn

from ssl_toolkit import (
    FeatureAlgorithm,
    FeatureHead,
    FeatureTransform,
    Options,
    TrainingFeatures,
    unit_length,
)
from ssl_toolkit import option as an_option


class FeatureMethod(FeatureAlgorithm):
    """Fit a linear head that predicts the class with the nearest mean of labeled features."""

    class Config(Options):
        """Options of the means."""

        scale: float = an_option(20.0, gt=0, help="factor of the logits")

    config: Config

    @abstractmethod
    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module: ...

    def plain(self, features: TrainingFeatures) -> FeatureHead:
        """Return a head that breaks no rule."""
        transform = unit_length(features.blocks)
        x = transform(features.labeled[0])
        weight = torch.zeros(self.task.num_classes, x.shape[1])
        bias = torch.full((self.task.num_classes,), -100.0)
        for number in features.labels.unique().tolist():
            mean = x[features.labels == number].mean(dim=0)
            weight[number] = 2 * self.config.scale * mean
            bias[number] = -self.config.scale * mean.square().sum()
        return FeatureHead.linear(transform, weight, bias)


class PlainMeans(FeatureMethod):
    """It breaks no rule."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return self.plain(features)


class Around(nn.Module):
    """Wrap a head in another module."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        return self.head(features)


# --- class and options --------------------------------------------------------------------------


@breaks("has_docstring")
class SilentMeans(FeatureMethod):
    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return self.plain(features)


@breaks("has_frozen_config")
class LooseMeans(FeatureMethod):
    """Its options can be set."""

    class Config(FeatureMethod.Config):
        """Options."""

        model_config = ConfigDict(frozen=False)

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return self.plain(features)


# --- features and their head --------------------------------------------------------------------


@breaks("declares_augmented_views")
class MoreEachTime(FeatureMethod):
    """It requests another view on each call."""

    calls = 0

    @property
    def augmented_views(self) -> int:
        self.calls += 1
        return self.calls

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return self.plain(features)


Transform = FeatureTransform


def with_transform(head: FeatureHead, kind: type[Transform]) -> FeatureHead:
    """Replace the class of the transform of a head, which no file stores."""
    head.transform.__class__ = kind
    return head


class Dividing(Transform):
    """It divides by the norm of the features."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) + 0 / features.norm(dim=-1, keepdim=True)


@breaks("returns_logits")
class Lengths(FeatureMethod):
    """Its logits of features of zeros are nan."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return with_transform(self.plain(features), Dividing)


class Lonely(Transform):
    """It shifts the features of a single image."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features if len(features) > 1 else features + 0.5)


@breaks("predicts_images_independently")
class Company(FeatureMethod):
    """Its logits depend on the number of images."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return with_transform(self.plain(features), Lonely)


@breaks("learns_separable_features")
class Reversed(FeatureMethod):
    """Its columns are in the reverse order."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        head = self.plain(features)
        head.predictor.weight.data = head.predictor.weight.data.flip(0)
        head.predictor.bias.data = head.predictor.bias.data.flip(0)
        return head


@breaks("fits_reproducibly")
class Lively(FeatureMethod):
    """Each fit draws from a new generator without a seed."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        head = self.plain(features)
        head.predictor.bias.data += torch.from_numpy(np.random.default_rng().normal(size=4)) / 100
        return head


@breaks("uses_no_global_generator")
class Drawing(FeatureMethod):
    """It draws weights that it does not use."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        nn.Linear(2, 2)
        return self.plain(features)


@breaks("does_not_modify_features")
class InPlace(FeatureMethod):
    """It modifies the features in place."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        features.unlabeled.div_(2)
        return self.plain(features)


@breaks("supports_empty_pool")
class Pooled(FeatureMethod):
    """It needs an unlabeled image."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        features.unlabeled[0].max()
        return self.plain(features)


@breaks("supports_one_label_per_class")
class HoldOut(FeatureMethod):
    """It needs two labels of each class for a hold-out split."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        counts = features.labels.bincount()
        if counts[counts > 0].min() < 2:
            raise ValueError("n_splits=2 cannot be greater than the members of each class")
        return self.plain(features)


@breaks("supports_classes_without_labels")
class SeenClasses(FeatureMethod):
    """It only has columns for classes with labels."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        head, seen = self.plain(features), features.labels.unique()
        return FeatureHead.linear(
            head.transform, head.predictor.weight[seen], head.predictor.bias[seen]
        )


@breaks("restores_head")
class Foreign(FeatureMethod):
    """Its head has a class that can't be restored."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return Around(self.plain(features))


class Shifted(Transform):
    """It adds a hard-coded number."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features + 0.1)


@breaks("restores_head")
class Outside(FeatureMethod):
    """Its head adds a number that is not a buffer."""

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> nn.Module:
        return with_transform(self.plain(features), Shifted)
