"""DebiasPL (Wang et al., CVPR 2022, arXiv:2201.01490)."""

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
    TaskInfo,
    Views,
    option,
)
from ssl_toolkit_adaptive.joint_forward import batch_mean, joint_logits


class DebiasPL(Algorithm):
    """FixMatch without the bias toward the classes that are predicted most often.

    The logarithm of the running mean prediction is subtracted from the logits that predict the
    pseudo labels, and added to the logits that are trained on them, as a margin of each class.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of DebiasPL."""

        confidence_threshold: float = option(
            0.95,
            ge=0,
            le=1,
            help="minimum confidence of a pseudo label, after debiasing",
            source="paper, CIFAR-10",
        )
        debias_factor: float = option(
            0.4,
            ge=0,
            help="factor of the logarithm of the mean prediction (lambda); 0 for FixMatch",
            source="USB's code: 0.4",
        )
        momentum: float = option(
            0.999, ge=0, lt=1, help="decay of the mean prediction (m)", source="USB's code: 0.999"
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="FixMatch"
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="FixMatch"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    config: Config
    mean_probs: Tensor
    """(C,), p: running mean of the predictions of weak views, before debiasing."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("mean_probs", torch.full((task.num_classes,), 1 / task.num_classes))

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_s + w · L_u with debiased pseudo labels and the adaptive marginal loss."""
        c = self.config
        labeled, weak, strong = joint_logits(batch, ctx)
        mean = batch_mean(weak.softmax(dim=-1), ctx).to(self.mean_probs)
        self.mean_probs.lerp_(mean, 1 - c.momentum)

        tiny = torch.finfo(self.mean_probs.dtype).tiny
        bias = c.debias_factor * self.mean_probs.clamp_min(tiny).log()
        probs = ctx.refine((weak.detach() - bias).softmax(dim=-1))
        confidence, pseudo_labels = probs.max(dim=-1)
        weights = ctx.weigh(probs, confidence >= c.confidence_threshold)
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = F.cross_entropy(strong + bias, pseudo_labels, reduction="none")
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss((losses * weights).mean(), c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
        )
