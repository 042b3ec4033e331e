"""AdaMatch (Berthelot et al., ICLR 2022, arXiv:2106.04732), semi-supervised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    GOOGLE_SETTINGS,
    Algorithm,
    Batch,
    Context,
    Loss,
    Metric,
    Options,
    PseudoLabels,
    StepOutput,
    TaskInfo,
    Views,
    option,
)
from ssl_toolkit.ops import align_distribution, at_least_float32, soft_cross_entropy
from ssl_toolkit_adaptive.joint_forward import batch_mean, split_logits


class AdaMatch(Algorithm):
    """FixMatch with aligned pseudo labels, a relative threshold and interpolated logits.

    The labeled images are the paper's source, the unlabeled ones its target. The threshold is a
    fraction of the mean confidence of the labeled images.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of AdaMatch."""

        relative_threshold: float = option(
            0.9,
            ge=0,
            le=1,
            help="threshold as a fraction of the mean confidence of the labeled images (tau)",
            source="paper; authors' code: 0.9; USB's code: 0.95",
        )
        labeled_momentum: float = option(
            0.999,
            ge=0,
            lt=1,
            help="decay of the mean prediction of labeled images",
            source="authors' code and USB's code: 0.999",
        )
        unlabeled_momentum: float = option(
            0.992,
            ge=0,
            lt=1,
            help="decay of the mean prediction of unlabeled images",
            source="authors' code: mean of the last 128 steps; USB's code: 0.999",
        )
        hard_labels: bool = option(
            False,
            help="train on the most likely class instead of the aligned distribution",
            source="paper: False; authors' code and USB's code: True",
        )
        unsupervised_weight: float = option(
            1.0,
            ge=0,
            help="weight of the unsupervised loss after its warm-up; 0 for none",
            source="authors' code: 1",
        )
        unlabeled_ratio: int = option(
            3, ge=1, help="unlabeled images for each labeled one", source="authors' code: 3"
        )

    profiles: ClassVar[Mapping[str, Any]] = {
        "reference": {
            **GOOGLE_SETTINGS,
            "labeled_in_pool": True,
            "augment": {"strong": "ctaugment"},
            "options": {"hard_labels": True},
        }
    }
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("threshold", "Threshold", "Fraction of the mean confidence of labeled images."),
    )
    config: Config
    labeled_probs: Tensor
    """(C,), running mean of the predictions of weak labeled views."""
    unlabeled_probs: Tensor
    """(C,), running mean of the predictions of weak unlabeled views, before alignment."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        uniform = torch.full((task.num_classes,), 1 / task.num_classes)
        self.register_buffer("labeled_probs", uniform)
        self.register_buffer("unlabeled_probs", uniform.clone())

    def views(self) -> Views:
        """One weak and one strong view of every image."""
        return Views(
            labeled_strong=1,
            unlabeled_weak=1,
            unlabeled_strong=1,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_source + mu(t) · L_target, sec. 3."""
        c = self.config
        labeled = torch.cat([batch.labeled_weak[0], batch.labeled_strong[0]])
        groups = [labeled, batch.unlabeled_weak[0], batch.unlabeled_strong[0]]
        joint, unlabeled_weak, unlabeled_strong = split_logits(groups, ctx)
        alone = at_least_float32(ctx.forward(labeled, update_statistics=False).logits)
        # Random logit interpolation: lambda is uniform, one for each logit.
        weak, strong = torch.lerp(alone, joint, self._lambda(batch, ctx).to(joint)).chunk(2)

        labeled_probs = weak.detach().softmax(dim=-1)
        probs = unlabeled_weak.detach().softmax(dim=-1)
        for running, values, momentum in (
            (self.labeled_probs, labeled_probs, c.labeled_momentum),
            (self.unlabeled_probs, probs, c.unlabeled_momentum),
        ):
            running.lerp_(batch_mean(values, ctx).to(running), 1 - momentum)
        probs = ctx.refine(
            align_distribution(probs, self.labeled_probs, self.unlabeled_probs, exponent=1)
        )
        threshold = c.relative_threshold * batch_mean(labeled_probs.amax(dim=-1), ctx)
        confidence, hard = probs.max(dim=-1)
        weights = ctx.weigh(probs, confidence >= threshold)

        source = F.cross_entropy(weak, batch.labels, reduction="none")
        source = source + F.cross_entropy(strong, batch.labels, reduction="none")
        if c.hard_labels:
            losses = F.cross_entropy(unlabeled_strong, hard, reduction="none")
        else:
            losses = soft_cross_entropy(unlabeled_strong, probs)
        # mu(t) rises from 0 to 1 over the first half of the run.
        warmup = 0.5 - math.cos(min(math.pi, 2 * math.pi * ctx.step / ctx.max_steps)) / 2
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(source).mean() / 2),
                "unsupervised": Loss((losses * weights).mean(), c.unsupervised_weight * warmup),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
            metrics={"threshold": threshold},
        )

    def _lambda(self, batch: Batch, ctx: Context) -> Tensor:
        """Draw (2 · B, C) numbers for the images of this process, weak views first."""
        whole = len(ctx.all_gather(batch.labels))
        numbers = torch.rand(2, whole, self.task.num_classes, generator=ctx.generator)
        return ctx.local_shard(numbers, dim=1).flatten(0, 1)
