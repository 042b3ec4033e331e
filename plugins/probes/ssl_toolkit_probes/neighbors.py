"""Vote of the nearest labeled features."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional as F

from ssl_toolkit import (
    FeatureAlgorithm,
    FeatureHead,
    Neighbors,
    Options,
    TrainingFeatures,
    option,
    unit_length,
)


class KNearestNeighbors(FeatureAlgorithm):
    """Classify by the k nearest labeled images, by the cosine of centered features.

    scikit-learn's ``KNeighborsClassifier`` on features of unit length; nothing is trained.
    """

    family: ClassVar[str] = "probe"

    class Config(Options):
        """Options of the neighbors' vote."""

        k: int = option(1, ge=1, help="labeled neighbors that vote (at most as many as labels)")

    config: Config

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """Return a head that contains the labeled features."""
        labeled = features.labeled[0]
        transform = unit_length(features.blocks, center=torch.cat([labeled, features.unlabeled[0]]))
        points = transform(labeled)
        scores = F.one_hot(features.labels, self.task.num_classes)
        k = min(self.config.k, len(points))
        return FeatureHead(transform, Neighbors(points, scores, k))
