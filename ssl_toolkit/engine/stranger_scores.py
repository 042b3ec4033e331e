"""Score the images of the pool by how little they resemble those of any class."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.models.classifier import energy
from ssl_toolkit.models.energies import Energies

SHRINKAGE = 0.3
"""Added to the eigenvalues of the correlations of the features, whose mean is 1."""
TEMPERATURE = 0.2
"""Divides the cosines before the energy."""
NEIGHBORS = 20
"""Nearest images whose scores are averaged, the image itself included."""
ROUNDS = 3
"""Times that scores are averaged over neighbors."""
REFERENCES = 10_000
"""Images of the pool at most among which neighbors are searched."""


@torch.no_grad()
def stranger_scores(
    labeled: Tensor, labels: Tensor, unlabeled: Tensor, validation: Tensor
) -> tuple[Tensor, Tensor]:
    """Return scores (m,), (v,): the larger, the less an image resembles those of any class.

    Features that distinguish the classes have the largest variance after training; strangers often
    differ in others. So the features are standardized and decorrelated. The score is the energy of
    the cosines to the means of the classes, then averaged over the nearest images, because most
    neighbors of strangers are strangers. It needs no logits, which say little after training on
    mixed images.

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
    mean, std = unlabeled.mean(dim=0), unlabeled.std(dim=0)
    x, v, known = ((part - mean) / (std + 1e-6) for part in (unlabeled, validation, labeled))
    variances, axes = torch.linalg.eigh((x.T @ x / len(x)).double())
    whitening = (axes * (variances.clamp_min(0) + SHRINKAGE).rsqrt()).to(x)
    x, v, known = (F.normalize(part @ whitening, dim=-1) for part in (x, v, known))
    means = torch.stack([known[labels == label].mean(dim=0) for label in torch.unique(labels)])
    means = F.normalize(means, dim=-1)
    scores, others = (energy(part @ means.T / TEMPERATURE) for part in (x, v))

    every = -(-len(x) // REFERENCES)
    references = x[::every]
    count = min(NEIGHBORS, len(references))
    nearest, nearest_to_others = (
        torch.cat([(part @ references.T).topk(k).indices for part in torch.split(images, 1024)])
        for images, k in ((x, count), (v, count - 1))
    )
    for _ in range(ROUNDS):
        # A validation image is not in the pool, so that its own score is added.
        others = (scores[::every][nearest_to_others].sum(dim=-1) + others) / count
        scores = scores[::every][nearest].mean(dim=-1)
    return scores.cpu(), others.cpu()


def enough_strangers(scores: Tensor, validation: Tensor) -> bool:
    """Return False if validation images show that the pool has few strangers or none.

    Args:
        scores: (m,) scores of the pool.
        validation: (v,) scores of images of the classes. Too few of them show nothing.
    """
    known = Energies.of(validation.numpy(), "validation")
    return known is None or known.many_strangers(scores.numpy())


def stranger_probabilities(scores: Tensor) -> Tensor:
    """Return the probability (m,) that each image is a stranger.

    Two normal distributions are fitted to the scores (m,), and the one with the larger mean is that
    of the strangers. Scores below the other mean have probability 0, those above its own mean 1,
    although the tails of the wider distribution exceed the narrower one on both sides.

    Source: Li, Socher and Hoi, DivideMix, ICLR 2020, section 3.1, which fits them to losses.
    """
    if not len(scores) or not scores.min() < scores.max():
        return torch.zeros_like(scores)
    from sklearn.mixture import GaussianMixture

    values = scores.double().numpy()[:, None]
    mixture = GaussianMixture(2, random_state=0).fit(values)
    strangers = int(mixture.means_[:, 0].argmax())
    probs = mixture.predict_proba(values)[:, strangers]
    probs[values[:, 0] <= mixture.means_[1 - strangers, 0]] = 0
    probs[values[:, 0] >= mixture.means_[strangers, 0]] = 1
    return torch.from_numpy(probs).float()
