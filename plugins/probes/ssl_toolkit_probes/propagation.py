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
    """Propagate labels along the k-nearest-neighbor graph; labels of labeled images stay fixed.

    Zhu and Ghahramani, CMU-CALD-02-107, 2002, by scikit-learn's ``LabelPropagation``. Other images
    are classified by the mean label distribution of their neighbors among the training images.
    """

    family: ClassVar[str] = "graph"

    class Config(Options):
        """Options of label propagation."""

        k: int = option(15, ge=1, help="neighbors of each image in the graph")
        max_iter: int = option(1000, ge=1, help="maximum number of iterations")

    config: Config

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """Return a head that contains all training features and their label distributions."""
        from sklearn.semi_supervised import LabelPropagation as Propagation

        estimator = Propagation("knn", n_neighbors=self.config.k, max_iter=self.config.max_iter)
        return fit_graph(estimator, features, self.config.k, self.task.num_classes)


class LabelSpreading(FeatureAlgorithm):
    """Spread labels over the k-nearest-neighbor graph with the normalized Laplacian.

    Zhou et al., NeurIPS 2003, eq. for F* with clamping factor alpha, by scikit-learn's
    ``LabelSpreading``. Other images are classified as by `LabelPropagation`.
    """

    family: ClassVar[str] = "graph"
    auto_rank: ClassVar[int] = 90

    class Config(Options):
        """Options of label spreading."""

        k: int = option(15, ge=1, help="neighbors of each image in the graph")
        alpha: float = option(
            0.2, gt=0, lt=1, help="share that an image takes from its neighbors at each iteration"
        )
        max_iter: int = option(1000, ge=1, help="maximum number of iterations")

    config: Config

    def fit(self, features: TrainingFeatures, generator: torch.Generator) -> FeatureHead:
        """Return a head that contains all training features and their label distributions."""
        from sklearn.semi_supervised import LabelSpreading as Spreading

        c = self.config
        estimator = Spreading("knn", n_neighbors=c.k, alpha=c.alpha, max_iter=c.max_iter)
        return fit_graph(estimator, features, c.k, self.task.num_classes)


def fit_graph(estimator: Any, features: TrainingFeatures, k: int, num_classes: int) -> FeatureHead:
    """Fit a graph estimator of scikit-learn to centered features of unit length.

    Args:
        estimator: unfitted estimator with the kernel ``knn``.
        features: features of the training images; labeled ones in the pool count twice.
        k: neighbors that vote for an image outside the graph.
        num_classes: number of classes C.
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
    distributions = np.nan_to_num(estimator.label_distributions_)
    scores = torch.zeros(len(pool), num_classes)
    scores[:, torch.from_numpy(estimator.classes_)] = torch.from_numpy(distributions).float()
    return FeatureHead(transform, Neighbors(points, scores, k))
