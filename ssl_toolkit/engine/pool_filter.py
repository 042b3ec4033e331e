"""Leave images of no class out of the unlabeled batches (``--drop-strangers``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.engine.batches import BatchMaker
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.streaming import Order
from ssl_toolkit.interfaces import TrainingFeatures
from ssl_toolkit.models.classifier import energy
from ssl_toolkit.models.predictor import Predictor
from ssl_toolkit.models.probe import fit_probe, unit_length

Mode = Literal["hard", "soft"]

UPDATES = 10
"""Parts of a run, between which the images are selected again."""
WARM_UP = 2
"""Parts at the start in which random weights learn the classes: their scores are arbitrary."""


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

    def fit(self, features: TrainingFeatures, classes: int) -> TrainingFeatures:
        """Return the features without those of the unlabeled images that are likely strangers.

        Args:
            features: Of all images; the scores are energies of a linear probe on the labels.
            classes: Number of classes.
        """
        probe = fit_probe(
            features.labeled[0], features.labels, classes, unit_length(features.blocks)
        )
        with torch.no_grad():
            self.scores = energy(probe.head(features.unlabeled[0]))
        return replace(features, unlabeled=features.unlabeled[:, self.weights > 0.5])

    def update(self, model: Predictor, batches: BatchMaker, processes: ProcessGroup) -> None:
        """Score the pool by the averaged weights, and select the images of the next batches."""
        images = batches.images
        scores = predict(
            model, images.inputs, images.unlabeled, self.batch_size, processes, convert=energy
        )
        self.select(scores, batches)

    def select(self, scores: Tensor, batches: BatchMaker) -> None:
        """Select the unlabeled images of the next batches by their scores (m,)."""
        self.scores = scores
        batches.select(*self._order(self.weights))

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
