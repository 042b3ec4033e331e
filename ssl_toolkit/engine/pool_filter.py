"""Leave images of no class out of the unlabeled batches (``--drop-strangers``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.engine.batches import BatchMaker
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.stranger_scores import (
    mixture_probabilities,
    share_of_strangers,
    stranger_probabilities,
    stranger_scores,
)
from ssl_toolkit.engine.streaming import Order
from ssl_toolkit.engine.training_images import TrainingImages
from ssl_toolkit.interfaces import Algorithm, TrainingFeatures
from ssl_toolkit.models.known_scores import are_many
from ssl_toolkit.models.predictor import Predictor
from ssl_toolkit.models.stage_statistics import stage_statistics

Mode = Literal["hard", "soft"]

UPDATES = 10
"""Parts of a run, between which the images are selected again."""
WARM_UP = 2
"""Parts at the start in which random weights learn the classes: their scores are arbitrary."""
RARE = 0.01
"""Images whose weight is at most this count as left out: no algorithm waits for them."""


def make_filter(
    settings: ResolvedSettings, validation: Tensor, algorithm: Algorithm, *, knows_classes: bool
) -> PoolFilter | None:
    """Return the filter of a run; None to draw all images.

    Args:
        settings: Settings of the run.
        validation: (v,) image indices of the validation images.
        algorithm: Algorithm of the run.
        knows_classes: True if the initial weights classify, as those of a probe.
    """
    if settings.drop_strangers == "no":
        return None
    return PoolFilter(
        settings.drop_strangers,
        settings.steps,
        settings.eval_batch_size,
        validation,
        algorithm,
        at_start=knows_classes,
    )


class PoolFilter:
    """Selects unlabeled images by scores of belonging to no class.

    Where validation images show few strangers, no image is left out. Otherwise, under ``hard``,
    images that are more likely strangers than not are not drawn; under ``soft``, the probability
    that an epoch contains an image falls with that of being a stranger.

    Args:
        mode: ``hard`` or ``soft``.
        steps: Steps of the run.
        batch_size: Images in a forward pass.
        validation: (v,) image indices of the validation images.
        algorithm: Its `pool_statistics` are reset when the filter starts to leave images out.
        at_start: True to start before the first step, if the initial weights know the classes.
    """

    def __init__(
        self,
        mode: Mode,
        steps: int,
        batch_size: int,
        validation: Tensor,
        algorithm: Algorithm,
        *,
        at_start: bool,
    ) -> None:
        self.mode = mode
        self.validation = validation
        self._algorithm = algorithm
        self._initial = {n: algorithm.get_buffer(n).clone() for n in algorithm.pool_statistics}
        self.interval: int = max(1, steps // UPDATES)
        self.first: int = 0 if at_start else WARM_UP * self.interval
        self.batch_size = batch_size
        self.scores: Tensor | None = None
        """(m,) float32 of the unlabeled images on the CPU, large for strangers; None before the
        first update."""
        self.validation_scores: Tensor = torch.empty(0)
        """(v,) float32 of the validation images on the CPU."""
        self.estimate: tuple[float, float] | None = None
        """Share of strangers by validation images, and its lower limit; None with too few."""
        self.weights: Tensor = torch.empty(0)
        """(m,) float32 in [0, 1] of the unlabeled images: 0 for those left out."""

    def is_due(self, step: int) -> bool:
        """Return True if the scores are to be updated before a step."""
        return step >= self.first and step % self.interval == 0

    def fit(self, features: TrainingFeatures, images: TrainingImages) -> TrainingFeatures:
        """Return the features without those of the unlabeled images that are likely strangers.

        Args:
            features: Features of the training images.
            images: Images of the run, with those of the validation images.
        """
        assert images.features is not None
        size = features.blocks[0]
        labeled, unlabeled = (part[0, :, :size] for part in (features.labeled, features.unlabeled))
        known = images.features.gather(self.validation)[:, :size].cpu()
        self._score(labeled, features.labels, unlabeled, known)
        return replace(features, unlabeled=features.unlabeled[:, self.weights > 0.5])

    def update(self, model: Predictor, batches: BatchMaker, processes: ProcessGroup) -> None:
        """Score the pool by the averaged weights, and select the images of the next batches."""
        kept_all = self._keeps_all
        images = batches.images
        classifier = model.classifier
        with stage_statistics(classifier.backbone, classifier.blocks[0]) as statistics:
            labeled, unlabeled, known = (
                predict(model, images.inputs, part, self.batch_size, processes, convert=statistics)
                for part in (images.labeled, images.unlabeled, self.validation)
            )
        known = known if len(known) else unlabeled[:0]  # those of no image have another shape
        self._score(labeled, images.labels.cpu(), unlabeled, known, processes)
        self._select(batches)
        if kept_all and not self._keeps_all:
            for name, value in self._initial.items():
                self._algorithm.get_buffer(name).copy_(value)

    @property
    def _keeps_all(self) -> bool:
        return bool((self.weights > 0.5).all())

    def _score(
        self,
        labeled: Tensor,
        labels: Tensor,
        unlabeled: Tensor,
        validation: Tensor,
        processes: ProcessGroup | None = None,
    ) -> None:
        scores, known = stranger_scores(labeled, labels, unlabeled, validation)
        if processes is not None:
            # Those of the main process: another kind of processor may round differently.
            scores, known = (processes.all_gather(part)[: len(part)] for part in (scores, known))
        self._weigh(scores, known)

    def _weigh(self, scores: Tensor, validation: Tensor) -> None:
        self.scores, self.validation_scores = scores, validation
        self.estimate = share_of_strangers(scores, validation)
        kept = torch.ones_like(scores)
        if self.estimate is None:
            kept -= mixture_probabilities(scores)
        elif are_many(*self.estimate):
            kept -= stranger_probabilities(scores, validation, self.estimate[0])
        self.weights = (kept > 0.5).float() if self.mode == "hard" else kept
        if len(scores) and not (self.weights > RARE).any():
            self.weights[scores.argmin()] = 1  # algorithms need an image of the pool

    def state(self) -> dict[str, Any]:
        """Return the scores of the last update."""
        return {"scores": self.scores, "validation_scores": self.validation_scores}

    def restore(self, state: Mapping[str, Any], batches: BatchMaker) -> None:
        """Select the images as in a state that `state` returned."""
        if state["scores"] is not None:
            self._weigh(state["scores"], state["validation_scores"])
            self._select(batches)

    def _select(self, batches: BatchMaker) -> None:
        """Select the unlabeled images of the next batches by their weights."""
        batches.select(self.weights > RARE, *self._order(self.weights))

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
