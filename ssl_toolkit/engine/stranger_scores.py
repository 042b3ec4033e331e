"""Score the images of the pool by how little they resemble those of any class."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.models.classifier import energy
from ssl_toolkit.models.known_scores import KnownScores

SHRINKAGE = 1.0
"""Added to the eigenvalues of the correlations of the features, whose mean is 1."""
TEMPERATURE = 0.5
"""Divides the cosines before the energy."""
NEIGHBORS = 20
"""Images whose scores are averaged: an image and those nearest to it."""
ROUNDS = 3
"""Times that scores are averaged over neighbors."""
TYPICAL = 0.4
"""Share of the images nearest to a class, those with the lowest scores, that join its mean."""
SEPARATION = 3.5
"""Least distance of the means of a mixture, in standard deviations."""
MOST = 2 / 3
"""Share of strangers at most by a mixture."""
REFERENCES = 10_000
"""Images of the pool at most among which neighbors are searched."""
PART = 1024
"""Images whose neighbors are searched at once."""


@torch.no_grad()
def stranger_scores(
    labeled: Tensor, labels: Tensor, unlabeled: Tensor, validation: Tensor
) -> tuple[Tensor, Tensor]:
    """Return scores (m,), (v,): the larger, the less an image resembles those of any class.

    Features that distinguish the classes have the largest variance after training; strangers often
    differ in others. So the features are standardized and decorrelated. The score is the energy of
    the cosines to the means of the classes, then averaged over the nearest images, because most
    neighbors of strangers are strangers. The means are those of the labeled images at first, then
    those of the images with the lowest scores as well. It needs no logits, which say little after
    training on mixed images.

    Args:
        labeled: (n, D) features.
        labels: (n,) classes.
        unlabeled: (m, D) features of the pool.
        validation: (v, D) features of images that change no score of the pool.

    Returns:
        The scores of the pool and of the validation images, float32 on the CPU.
    """
    if len(unlabeled) < 2:
        return torch.zeros(len(unlabeled)), torch.zeros(len(validation))
    std, mean = torch.std_mean(unlabeled, dim=0)
    scale = torch.where(std > 1e-6, 1 / std, 0)  # constant features count for nothing
    x, v, known = ((part - mean) * scale for part in (unlabeled, validation, labeled))
    identity = torch.eye(x.shape[1], dtype=torch.float64)
    factor = torch.linalg.cholesky((x.T @ x / len(x)).double() + SHRINKAGE * identity)
    whitening = torch.linalg.solve_triangular(factor, identity, upper=False).T.to(x)
    x, v, known = (F.normalize(part @ whitening, dim=-1) for part in (x, v, known))

    average = _Averages(x, v)
    means = _means(known, labels)
    scores, _ = average(means)
    nearest = (x @ means.T).argmax(dim=-1)
    typical = torch.cat([_lowest(scores, nearest == label) for label in range(len(means))])
    _, labels = torch.unique(labels, return_inverse=True)
    means = _means(torch.cat([known, x[typical]]), torch.cat([labels, nearest[typical]]))
    scores, others = average(means)
    return scores.cpu(), others.cpu()


class _Averages:
    """Computes energies of images, averaged over their nearest neighbors in the pool.

    Args:
        pool: (m, D) features of unit length.
        others: (v, D) features of images that are not in the pool.
    """

    def __init__(self, pool: Tensor, others: Tensor) -> None:
        self.pool, self.others = pool, others
        self.every = -(-len(pool) // REFERENCES)
        references = pool[:: self.every]
        self.count = min(NEIGHBORS, len(references))
        self.nearest, self.nearest_to_others = (
            self._nearest(images, references) for images in (pool, others)
        )

    def _nearest(self, images: Tensor, references: Tensor) -> Tensor:
        """Return the positions (n, count - 1) of other images among the references."""
        found = []
        for first in range(0, len(images), PART):
            cosines = images[first : first + PART] @ references.T
            if images is self.pool:
                rows = torch.arange(-first % self.every, len(cosines), self.every)
                cosines[rows, (first + rows) // self.every] = -torch.inf  # the image itself
            found.append(cosines.topk(self.count - 1).indices)
        return torch.cat(found) if found else torch.empty(0, self.count - 1, dtype=torch.int64)

    def __call__(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (m,) of the pool and (v,) of the others.

        Args:
            means: (C, D) means of the classes, of unit length.
        """
        scores, others = (energy(x @ means.T / TEMPERATURE) for x in (self.pool, self.others))
        for _ in range(ROUNDS):
            references = scores[:: self.every]
            scores, others = (
                (own + references[nearest].sum(dim=-1)) / self.count
                for own, nearest in ((scores, self.nearest), (others, self.nearest_to_others))
            )
        return scores, others


def _means(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the features of each class, of unit length."""
    means = [features[labels == label].mean(dim=0) for label in torch.unique(labels)]
    return F.normalize(torch.stack(means), dim=-1)


def _lowest(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the positions of the `TYPICAL` share with the lowest scores among some images."""
    positions = mask.nonzero().flatten()
    return positions[scores[positions].argsort()[: round(TYPICAL * len(positions))]]


def share_of_strangers(scores: Tensor, validation: Tensor) -> tuple[float, float] | None:
    """Return `KnownScores.share_of_strangers` of the pool; None with too few validation images.

    Args:
        scores: (m,) scores of the pool.
        validation: (v,) scores of images of the classes.
    """
    known = KnownScores.of(validation.numpy(), "validation")
    return None if known is None else known.share_of_strangers(scores.numpy())


def stranger_probabilities(scores: Tensor, validation: Tensor, share: float) -> Tensor:
    """Return the probability (m,) that each image is a stranger, which increases with the score.

    The images of the classes in the pool have the scores of validation images. So where scores of
    the pool are r times as frequent as those of validation images, a share of (1 - `share`) / r is
    of images of the classes. An isotonic regression of which of the two a score belongs to
    estimates r.

    Args:
        scores: (m,) scores of the pool.
        validation: (v,) scores of images of the classes, v > 0.
        share: Share of the pool that are strangers.
    """
    from sklearn.isotonic import IsotonicRegression

    sizes = torch.tensor([len(scores), len(validation)])
    of_pool = torch.tensor([1.0, 0.0]).repeat_interleave(sizes)
    weights = (1 / sizes).repeat_interleave(sizes)
    values = torch.cat([scores, validation])
    parts = (part.double().numpy() for part in (values, of_pool, weights))
    probs = torch.from_numpy(IsotonicRegression().fit(*parts).predict(scores.double().numpy()))
    return (1 - (1 - share) * (1 - probs) / probs).clamp(0, 1).float()


def mixture_probabilities(scores: Tensor) -> Tensor:
    """Return the probability (m,) that each image is a stranger, without validation images.

    Two normal distributions of equal variance are fitted to the scores (m,), and the one with the
    larger mean is that of the strangers. As their variances are equal, the probability increases
    with the score. It is 0 for all images if the two are less than `SEPARATION` apart or if the
    strangers are more than `MOST`: the fit then divides the images of the classes.

    Source: Li, Socher and Hoi, DivideMix, ICLR 2020, section 3.1, which fits them to losses.
    """
    nobody = torch.zeros_like(scores)
    if not len(scores) or not scores.min() < scores.max():
        return nobody
    from sklearn.mixture import GaussianMixture

    values = scores.double().numpy()[:, None]
    mixture = GaussianMixture(2, covariance_type="tied", random_state=0).fit(values)
    means, deviation = mixture.means_[:, 0], mixture.covariances_[0, 0] ** 0.5
    strangers = means.argmax()
    if means.max() - means.min() < SEPARATION * deviation or mixture.weights_[strangers] > MOST:
        return nobody
    return torch.from_numpy(mixture.predict_proba(values)[:, strangers]).float()
