"""Entropy minimization (Grandvalet & Bengio, NeurIPS 2004)."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
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


@final
class MinEntropy(Algorithm):
    """Move the decision boundary away from the unlabeled images.

    The entropy of a prediction is low far from the boundary between classes, so minimizing it
    assumes that classes are separated by regions with few images.
    """

    api_version = (1, 0)

    class Config(Options):
        """Options of entropy minimization."""

        entropy_weight: float = option(
            0.1,
            ge=0,
            help="weight of the entropy after its ramp (lambda); 0 for none",
            source="README",
        )
        rampup_fraction: float = option(
            0.4, ge=0, le=1, help="share of the run over which the weight rises", source="README"
        )
        unlabeled_ratio: int = option(
            1, ge=1, help="unlabeled images per labeled one", source="README"
        )

    config: Config

    def views(self) -> Views:
        """Request one weak view of every image."""
        return Views(unlabeled_weak=1, unlabeled_ratio=self.config.unlabeled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return L + lambda(t) · H, the negative of the paper's criterion."""
        images = torch.cat([batch.labeled_weak[0], batch.unlabeled_weak[0]])
        logits = at_least_float32(ctx.model(images))
        labeled, unlabeled = logits[: len(batch.labels)], logits[len(batch.labels) :]
        weight = self.config.entropy_weight
        weight *= rampup(ctx.step, ctx.max_steps, self.config.rampup_fraction)
        probs = unlabeled.detach().softmax(dim=-1)
        return StepOutput(
            losses={
                "supervised": Loss(F.cross_entropy(labeled, batch.labels)),
                "entropy": Loss(entropy(unlabeled).mean(), weight),
            },
            pseudo_labels=PseudoLabels(probs, torch.ones_like(probs[:, 0], dtype=torch.bool)),
        )


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy (N,) of the predictions of logits (N, C)."""
    log_probs = logits.log_softmax(dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)
