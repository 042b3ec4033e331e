"""Logistic regression on frozen features."""

from __future__ import annotations

from typing import ClassVar

import torch

from ssl_toolkit import FeatureAlgorithm, FeatureHead, TrainingFeatures, fit_probe, unit_length


class LinearProbe(FeatureAlgorithm):
    """Learn a logistic regression on the labeled features: what every other method has to beat.

    scikit-learn's ``LogisticRegression`` on features of unit length. The strength of its L2 penalty
    is the one with the smallest cross-validated log loss on the labels.
    """

    auto_rank: ClassVar[int] = 80

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """A linear head."""
        return fit_probe(
            features.labeled[0],
            features.labels,
            self.task.num_classes,
            unit_length(features.blocks),
        ).head
