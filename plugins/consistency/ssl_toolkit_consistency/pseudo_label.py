"""Pseudo-Label (Lee, ICML workshop on challenges in representation learning, 2013)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    USB_SETTINGS,
    Algorithm,
    Batch,
    Context,
    Loss,
    Options,
    PseudoLabels,
    StepOutput,
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32, rampup


class PseudoLabel(Algorithm):
    """Train on the classes that the model itself predicts for the unlabeled images."""

    family: ClassVar[str] = "self-training"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})
    tasks: ClassVar[frozenset[str]] = frozenset({"multiclass", "multilabel"})

    class Config(Options):
        """Options of Pseudo-Label."""

        confidence_threshold: float = option(
            0.95,
            ge=0,
            le=1,
            help="minimum confidence of a pseudo label; 0 to use all",
            source="USB's code: 0.95; paper: 0",
        )
        unsupervised_weight: float = option(
            1.0,
            ge=0,
            help="weight of the unsupervised loss after its ramp (alpha_f); 0 for none",
            source="USB's code: 1; paper: 3",
        )
        rampup_fraction: float = option(
            0.4,
            ge=0,
            le=1,
            help="share of the run over which the weight rises from 0; 0 for no ramp",
            source="USB's code: 0.4",
        )
        unlabeled_ratio: int = option(
            1, ge=1, help="unlabeled images for each labeled one", source="USB's code: 1"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    config: Config

    def views(self) -> Views:
        """One weak view of every image."""
        return Views(unlabeled_weak=1, unlabeled_ratio=self.config.unlabeled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L + alpha(t) · L', eq. 15."""
        c = self.config
        labeled = at_least_float32(ctx.model(batch.labeled_weak[0]))
        # The labeled images alone set BatchNorm's running statistics, as in USB.
        unlabeled = at_least_float32(
            ctx.forward(batch.unlabeled_weak[0], update_statistics=False).logits
        )
        ramp = rampup(ctx.step, ctx.max_steps, c.rampup_fraction)
        weight = c.unsupervised_weight * ramp
        if self.task.kind == "multilabel":
            return self._per_class(labeled, unlabeled, batch, weight)
        probs = ctx.refine(unlabeled.detach().softmax(dim=-1))
        confidence, pseudo_labels = probs.max(dim=-1)
        weights = ctx.weigh(probs, confidence >= c.confidence_threshold)
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = F.cross_entropy(unlabeled, pseudo_labels, reduction="none")
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss((losses * weights).mean(), weight),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
        )

    def _per_class(
        self, labeled: Tensor, unlabeled: Tensor, batch: Batch, weight: float
    ) -> StepOutput:
        """Return the same with an independent pseudo label of each class, for several classes.

        A class is a positive pseudo label from the threshold on, a negative one up to 1 minus it.
        """
        probs = unlabeled.detach().sigmoid()
        confidence = torch.maximum(probs, 1 - probs)
        mask = confidence >= self.config.confidence_threshold
        losses = F.binary_cross_entropy_with_logits(
            unlabeled, (probs > 0.5).to(unlabeled), reduction="none"
        )
        supervised = F.binary_cross_entropy_with_logits(labeled, batch.labels)
        return StepOutput(
            losses={
                "supervised": Loss(supervised),
                "unsupervised": Loss((losses * mask).mean(), weight),
            },
            pseudo_labels=PseudoLabels(probs, mask),
        )
