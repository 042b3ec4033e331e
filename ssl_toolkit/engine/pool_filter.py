"""Leave images of no class out of the unlabeled batches (``--drop-strangers``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.engine.batches import BatchMaker
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.streaming import Order
from ssl_toolkit.interfaces import ForwardOutput, TrainingFeatures
from ssl_toolkit.models.classifier import energy
from ssl_toolkit.models.predictor import Predictor

Mode = Literal["hard", "soft"]

UPDATES = 10
"""Parts of a run, between which the images are selected again."""
WARM_UP = 2
"""Parts at the start in which random weights learn the classes: their scores are arbitrary."""

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


def make_filter(settings: ResolvedSettings, *, knows_classes: bool) -> PoolFilter | None:
    """Return the filter of a run; None to draw all images.

    Args:
        settings: Settings of the run.
        knows_classes: True if the initial weights classify, as those of a probe.
    """
    if settings.drop_strangers == "no":
        return None
    return PoolFilter(
        settings.drop_strangers, settings.steps, settings.eval_batch_size, at_start=knows_classes
    )


@torch.no_grad()
def stranger_scores(labeled: Tensor, labels: Tensor, unlabeled: Tensor) -> Tensor:
    """Return scores (m,): the larger, the less an image resembles the labeled ones of any class.

    Features that distinguish the classes have the largest variance after training; strangers often
    differ in others. So the features are standardized and decorrelated. The score is the energy of
    the cosines to the means of the classes, then averaged over the nearest images, because most
    neighbors of strangers are strangers. It needs no logits, which say little after training on
    mixed images.

    Args:
        labeled: (n, D) features.
        labels: (n,) classes.
        unlabeled: (m, D) features of the pool.

    Returns:
        Float32 on the CPU.
    """
    if len(unlabeled) < 2:
        return torch.zeros(len(unlabeled))
    mean, std = unlabeled.mean(dim=0), unlabeled.std(dim=0)
    x, known = ((part - mean) / (std + 1e-6) for part in (unlabeled, labeled))
    variances, axes = torch.linalg.eigh((x.T @ x / len(x)).double())
    whitening = (axes * (variances.clamp_min(0) + SHRINKAGE).rsqrt()).to(x)
    x, known = (F.normalize(part @ whitening, dim=-1) for part in (x, known))
    means = torch.stack([known[labels == label].mean(dim=0) for label in torch.unique(labels)])
    scores = energy(x @ F.normalize(means, dim=-1).T / TEMPERATURE)

    every = -(-len(x) // REFERENCES)
    references = x[::every]
    count = min(NEIGHBORS, len(references))
    nearest = torch.cat(
        [(part @ references.T).topk(count).indices for part in torch.split(x, 1024)]
    )
    for _ in range(ROUNDS):
        scores = scores[::every][nearest].mean(dim=-1)
    return scores.cpu()


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


class PoolFilter:
    """Selects unlabeled images by scores of belonging to no class.

    Under ``hard``, images that are more likely strangers than not are not drawn. Under ``soft``,
    the probability that an epoch contains an image falls with that of being a stranger.

    Args:
        mode: ``hard`` or ``soft``.
        steps: Steps of the run.
        batch_size: Images in a forward pass.
        at_start: True to start before the first step, if the initial weights know the classes.
    """

    def __init__(self, mode: Mode, steps: int, batch_size: int, *, at_start: bool) -> None:
        self.mode = mode
        self.interval: int = max(1, steps // UPDATES)
        self.first: int = 0 if at_start else WARM_UP * self.interval
        self.batch_size = batch_size
        self.scores: Tensor | None = None
        """(m,) float32 of the unlabeled images on the CPU, large for strangers; None before the
        first update."""

    def is_due(self, step: int) -> bool:
        """Return True if the scores are to be updated before a step."""
        return step >= self.first and step % self.interval == 0

    def fit(self, features: TrainingFeatures) -> TrainingFeatures:
        """Return the features without those of the unlabeled images that are likely strangers."""
        size = features.blocks[0]
        labeled, unlabeled = (part[0, :, :size] for part in (features.labeled, features.unlabeled))
        self.scores = stranger_scores(labeled, features.labels, unlabeled)
        return replace(features, unlabeled=features.unlabeled[:, self.weights > 0.5])

    def update(self, model: Predictor, batches: BatchMaker, processes: ProcessGroup) -> None:
        """Score the pool by the averaged weights, and select the images of the next batches."""
        images = batches.images
        size = model.classifier.blocks[0]

        def last_stage(output: ForwardOutput) -> Tensor:
            return output.features[:, :size].float()

        labeled, unlabeled = (
            predict(model, images.inputs, part, self.batch_size, processes, convert=last_stage)
            for part in (images.labeled, images.unlabeled)
        )
        scores = stranger_scores(labeled, images.labels.cpu(), unlabeled)
        # Those of the main process: another kind of processor may round differently.
        self.select(processes.all_gather(scores)[: len(scores)], batches)

    def select(self, scores: Tensor, batches: BatchMaker) -> None:
        """Select the unlabeled images of the next batches by their scores (m,)."""
        self.scores = scores
        weights = self.weights
        batches.select(weights > 0, *self._order(weights))

    @property
    def weights(self) -> Tensor:
        """(m,) float32 in [0, 1] of the scores."""
        assert self.scores is not None
        kept = 1 - stranger_probabilities(self.scores)
        return (kept > 0.5).float() if self.mode == "hard" else kept

    def _order(self, weights: Tensor) -> tuple[int, Order]:
        """Return the number of images in an epoch, and the order of each epoch.

        The images are in the same order as without a filter, except that some are missing.
        """
        count = max(1, round(float(weights.sum())))
        # Sampling without replacement, in proportion to the weights: Efraimidis and Spirakis,
        # Information Processing Letters 2006. Weights of 0 come last.
        floor = torch.finfo(torch.float64).tiny

        def draw(generator: torch.Generator) -> Tensor:
            permutation = torch.randperm(len(weights), generator=generator)
            uniform = torch.rand(len(weights), generator=generator, dtype=torch.float64)
            keys = uniform.clamp_min(floor).log() / weights.double().clamp_min(1e-12)
            kept = torch.zeros(len(weights), dtype=torch.bool)
            kept[keys.topk(count).indices] = True
            return permutation[kept[permutation]]

        return count, draw
