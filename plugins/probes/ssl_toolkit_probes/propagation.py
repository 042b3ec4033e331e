"""Labels spread over the neighbor graph of all training features."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch

from ssl_toolkit import (
    FeatureAlgorithm,
    FeatureHead,
    Neighbors,
    Options,
    TrainingFeatures,
    option,
    unit_length,
)


class LabelPropagation(FeatureAlgorithm):
    """Propagate labels along the k-nearest-neighbor graph; given labels stay as they are.

    Zhu and Ghahramani, CMU-CALD-02-107, 2002, by scikit-learn's ``LabelPropagation``. Other images
    are classified by the mean label distribution of their neighbors among the training images.
    """

    class Config(Options):
        """Options of label propagation."""

        k: int = option(15, ge=1, help="neighbors of each image in the graph")
        max_iter: int = option(1000, ge=1, help="most iterations")

    config: Config

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """A head that holds all training features and their label distributions."""
        from sklearn.semi_supervised import LabelPropagation as Propagation

        made = Propagation("knn", n_neighbors=self.config.k, max_iter=self.config.max_iter)
        return fit_graph(made, features, self.config.k, self.task.num_classes)


class LabelSpreading(FeatureAlgorithm):
    """Spread labels over the k-nearest-neighbor graph with the normalized Laplacian.

    Zhou et al., NeurIPS 2003, eq. for F* with clamping factor alpha, by scikit-learn's
    ``LabelSpreading``. Other images are classified as by `LabelPropagation`.
    """

    auto_rank: ClassVar[int] = 90

    class Config(Options):
        """Options of label spreading."""

        k: int = option(15, ge=1, help="neighbors of each image in the graph")
        alpha: float = option(
            0.2, gt=0, lt=1, help="share that an image takes from its neighbors at each iteration"
        )
        max_iter: int = option(1000, ge=1, help="most iterations")

    config: Config

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """A head that holds all training features and their label distributions."""
        from sklearn.semi_supervised import LabelSpreading as Spreading

        c = self.config
        made = Spreading("knn", n_neighbors=c.k, alpha=c.alpha, max_iter=c.max_iter)
        return fit_graph(made, features, c.k, self.task.num_classes)


def fit_graph(estimator: Any, features: TrainingFeatures, k: int, num_classes: int) -> FeatureHead:
    """Fit a graph of scikit-learn's to centered features of unit length.

    Args:
        estimator: unfitted, with a kernel of neighbors.
        features: of the training images; labeled ones that are in the pool too count twice.
        k: neighbors that vote for an image outside the graph.
        num_classes: C.
    """
    from sklearn.exceptions import ConvergenceWarning

    pool = torch.cat([features.labeled[0], features.unlabeled[0]])
    transform = unit_length(features.blocks, center=pool)
    points = transform(pool)
    k = min(k, len(points))
    estimator.set_params(n_neighbors=k)
    labels = np.concatenate(
        [features.labels.numpy(), np.full(features.unlabeled.shape[1], -1, dtype=np.int64)]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        # A part of the graph without a label has a distribution of zeros: 0/0 in scikit-learn.
        warnings.simplefilter("ignore", RuntimeWarning)
        estimator.fit(points.numpy(), labels)
    found = np.nan_to_num(estimator.label_distributions_)
    scores = torch.zeros(len(pool), num_classes)
    scores[:, torch.from_numpy(estimator.classes_)] = torch.from_numpy(found).float()
    return FeatureHead(transform, Neighbors(points, scores, k))
