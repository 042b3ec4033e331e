"""Pi-Model (Laine and Aila, ICLR 2017, arXiv:1610.02242)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from ssl_toolkit import (
    USB_SETTINGS,
    Algorithm,
    Batch,
    Context,
    Loss,
    Options,
    StepOutput,
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32, rampup


class PiModel(Algorithm):
    """Train two random views of each unlabeled image to the same prediction."""

    family: ClassVar[str] = "consistency"

    class Config(Options):
        """Options of the Pi-Model."""

        unsupervised_weight: float = option(
            10.0,
            ge=0,
            help="weight of the consistency loss after its ramp; 0 for none",
            source="USB's settings: 10",
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
        """One weak labeled view and two weak unlabeled ones."""
        return Views(unlabeled_weak=2, unlabeled_ratio=self.config.unlabeled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Cross-entropy + w(t) · mean squared difference.

        Algorithm 1 of the paper takes the difference over all images, with gradient into both
        views, and w(t) rises by `gaussian_rampup`. Here, as in USB, the images are the unlabeled
        ones, the first view is a target without gradient, and w(t) rises linearly.
        """
        c = self.config
        labeled = at_least_float32(ctx.model(batch.labeled_weak[0]))
        # The labeled images alone set BatchNorm's running statistics, as in USB.
        probs = torch.stack(
            [
                at_least_float32(ctx.forward(view, update_statistics=False).logits).softmax(dim=-1)
                for view in batch.unlabeled_weak
            ]
        )
        ramp = rampup(ctx.step, ctx.max_steps, c.rampup_fraction)
        return StepOutput(
            losses={
                "supervised": Loss(F.cross_entropy(labeled, batch.labels)),
                "unsupervised": Loss(
                    F.mse_loss(probs[1], probs[0].detach()), c.unsupervised_weight * ramp
                ),
            }
        )
