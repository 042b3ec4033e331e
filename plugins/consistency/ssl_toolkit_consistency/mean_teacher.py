"""Mean Teacher (Tarvainen and Valpola, NeurIPS 2017, arXiv:1703.01780)."""

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
    PseudoLabels,
    StepOutput,
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32, l2_consistency, rampup


class MeanTeacher(Algorithm):
    """Train a view of each unlabeled image to the averaged model's prediction on another view."""

    family: ClassVar[str] = "consistency"

    class Config(Options):
        """Options of Mean Teacher."""

        unsupervised_weight: float = option(
            50.0,
            ge=0,
            help="weight of the consistency loss after its ramp; 0 for none",
            source="USB's settings: 50",
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
        """Classification cost + w(t) · consistency cost, sec. 2.

        The paper's consistency cost is that of all images of the batch, and its weight rises by
        `gaussian_rampup`; here, as in USB, it is that of the unlabeled ones and rises linearly.
        """
        c = self.config
        labeled = at_least_float32(ctx.model(batch.labeled_weak[0]))
        # The labeled images alone set BatchNorm's running statistics, as in USB.
        output = ctx.forward(batch.unlabeled_weak[1], update_statistics=False)
        student = at_least_float32(output.logits)
        # In eval mode, the target would differ from the student by BatchNorm's statistics too, and
        # training to remove this difference collapses.
        teacher = ctx.teacher(batch.unlabeled_weak[0], train_mode=True)
        probs = at_least_float32(teacher).softmax(dim=-1)
        ramp = rampup(ctx.step, ctx.max_steps, c.rampup_fraction)
        return StepOutput(
            losses={
                "supervised": Loss(F.cross_entropy(labeled, batch.labels)),
                "unsupervised": Loss(l2_consistency(student, probs), c.unsupervised_weight * ramp),
            },
            pseudo_labels=PseudoLabels(probs, probs.new_ones(len(probs), dtype=torch.bool)),
        )
