"""SoftMatch (Chen et al., ICLR 2023, arXiv:2301.10921)."""

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
    Metric,
    Options,
    PseudoLabels,
    StepOutput,
    TaskInfo,
    Views,
    option,
)
from ssl_toolkit.ops import align_distribution
from ssl_toolkit_adaptive.joint_forward import batch_mean, joint_logits


class SoftMatch(Algorithm):
    """FixMatch with a weight for each pseudo label in place of a threshold.

    The weight is 1 at and above the running mean confidence, and falls below it like a Gaussian
    of the running variance.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of SoftMatch."""

        momentum: float = option(
            0.999, ge=0, lt=1, help="decay of the running means (m)", source="USB's code"
        )
        num_sigmas: float = option(
            2.0,
            gt=0,
            help="divisor of the standard deviation: higher cuts off unlikely labels more sharply",
            source="USB's code: 2",
        )
        uniform_alignment: bool = option(
            True,
            help="weigh predictions aligned to equal class shares; the pseudo labels are not "
            "aligned",
            source="paper; USB's code",
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="USB's code"
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="USB's settings: 7"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("mean_confidence", "Mean confidence", "Center of the Gaussian weight."),
    )
    config: Config
    mean: Tensor
    """(), mu: running mean of the confidence."""
    variance: Tensor
    """(), sigma²: running variance of the confidence."""
    mean_probs: Tensor
    """(C,), running mean of the predictions of weak views; zeros before the first."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("mean", torch.tensor(1 / task.num_classes))
        self.register_buffer("variance", torch.tensor(1.0))
        self.register_buffer("mean_probs", torch.zeros(task.num_classes))

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_s + w · L_u."""
        c = self.config
        labeled, weak, strong = joint_logits(batch, ctx)
        probs = ctx.refine(weak.detach().softmax(dim=-1))
        confidence = self._confidence(probs, ctx)
        self._update(confidence, ctx)

        below = (confidence - self.mean).clamp_max(0)
        weights = (-(below * c.num_sigmas).square() / (2 * self.variance)).exp()
        weights = ctx.weigh(probs, weights).to(weights)
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = F.cross_entropy(strong, probs.argmax(dim=-1), reduction="none")
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss((losses * weights).mean(), c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels(
                probs, torch.ones_like(weights, dtype=torch.bool), weights.detach().clamp(0, 1)
            ),
            metrics={"mean_confidence": self.mean.clone()},
        )

    def _confidence(self, probs: Tensor, ctx: Context) -> Tensor:
        """Return the largest probability of each row (U,), after uniform alignment."""
        if not self.config.uniform_alignment:
            return probs.amax(dim=-1)
        mean = batch_mean(probs, ctx).to(self.mean_probs)
        first = (self.mean_probs.sum() == 0).to(mean)  # it starts at the first batch's mean
        self.mean_probs.lerp_(mean, 1 - self.config.momentum * (1 - first))
        uniform = torch.full_like(self.mean_probs, 1 / len(self.mean_probs))
        return align_distribution(probs, uniform, self.mean_probs, exponent=1).amax(dim=-1)

    def _update(self, confidence: Tensor, ctx: Context) -> None:
        """Move mean and variance toward those of the whole batch."""
        confidence = ctx.all_gather(confidence).to(self.mean)
        rate = 1 - self.config.momentum
        self.mean.lerp_(confidence.mean(), rate)
        self.variance.lerp_(confidence.var() if len(confidence) > 1 else self.variance, rate)
