"""Logistic regression on frozen features."""

from __future__ import annotations

from typing import ClassVar

import torch

from ssl_toolkit import (
    FeatureAlgorithm,
    FeatureHead,
    TrainingFeatures,
    fit_multilabel_probe,
    fit_probe,
    unit_length,
)


class LinearProbe(FeatureAlgorithm):
    """Fit a logistic regression to the labeled features, the baseline of all other methods.

    scikit-learn's ``LogisticRegression`` on features of unit length. The strength of its L2 penalty
    is the one with the smallest cross-validated log loss on the labels. With several classes per
    image, a regression for each class.
    """

    family: ClassVar[str] = "probe"
    tasks: ClassVar[frozenset[str]] = frozenset({"multiclass", "multilabel"})
    auto_rank: ClassVar[int] = 80

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """Return a linear head."""
        transform = unit_length(features.blocks)
        if self.task.kind == "multilabel":
            return fit_multilabel_probe(features.labeled[0], features.labels, transform).head
        return fit_probe(
            features.labeled[0],
            features.labels,
            self.task.num_classes,
            transform,
        ).head
