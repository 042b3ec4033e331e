"""FreeMatch (Wang et al., ICLR 2023, arXiv:2205.07246)."""

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
from ssl_toolkit_adaptive.joint_forward import batch_mean, joint_logits


class FreeMatch(Algorithm):
    """FixMatch with thresholds estimated from the predictions, and a loss for class fairness.

    The threshold of a class is the running mean confidence, scaled by how often the class is
    predicted relative to the most frequent one.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of FreeMatch."""

        momentum: float = option(
            0.999,
            ge=0,
            lt=1,
            help="decay of the running means (lambda)",
            source="paper; USB's code: 0.999",
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="USB's code"
        )
        fairness_weight: float = option(
            0.01,
            ge=0,
            help="weight of the fairness loss; 0 for none",
            source="USB's code: 0.01; its settings: 0.001",
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one (mu)", source="USB's settings: 7"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("global_threshold", "Global threshold", "Running mean of the confidence."),
    )
    config: Config
    global_threshold: Tensor
    """(), tau."""
    mean_probs: Tensor
    """(C,), p: running mean of the predictions of weak views."""
    histogram: Tensor
    """(C,), h: running shares of the pseudo labels."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        uniform = torch.full((task.num_classes,), 1 / task.num_classes)
        self.register_buffer("global_threshold", uniform[0].clone())
        self.register_buffer("mean_probs", uniform.clone())
        self.register_buffer("histogram", uniform.clone())

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_s + w_u · L_u + w_f · L_f."""
        c = self.config
        labeled, weak, strong = joint_logits(batch, ctx)
        probs = ctx.refine(weak.detach().softmax(dim=-1))
        confidence, pseudo_labels = probs.max(dim=-1)
        self._update(probs, confidence, pseudo_labels, ctx)

        scale = self.mean_probs / self.mean_probs.max()
        thresholds = self.global_threshold * scale
        weights = ctx.weigh(probs, confidence >= thresholds[pseudo_labels])
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = F.cross_entropy(strong, pseudo_labels, reduction="none")
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss((losses * weights).mean(), c.unsupervised_weight),
                "fairness": Loss(
                    self._fairness(ctx.all_gather(strong), ctx.all_gather(weights > 0)),
                    c.fairness_weight,
                ),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
            metrics={"global_threshold": self.global_threshold.clone()},
        )

    def _update(
        self, probs: Tensor, confidence: Tensor, pseudo_labels: Tensor, ctx: Context
    ) -> None:
        """Move the running means toward those of the batch."""
        rate = 1 - self.config.momentum
        one_hot = F.one_hot(pseudo_labels, self.task.num_classes).to(probs)
        self.global_threshold.lerp_(batch_mean(confidence, ctx).to(self.global_threshold), rate)
        self.mean_probs.lerp_(batch_mean(probs, ctx).to(self.mean_probs), rate)
        self.histogram.lerp_(batch_mean(one_hot, ctx).to(self.histogram), rate)

    def _fairness(self, strong: Tensor, mask: Tensor) -> Tensor:
        """Negative cross-entropy of two distributions; 0 if the mask is empty.

        Both are mean predictions divided by the histogram of their classes, normalized: of the
        weak views over the run, and of the strong views that `mask` selects.

        Args:
            strong: (U, C) logits; carries the gradient.
            mask: (U,) bool.
        """
        probs, weights = strong.softmax(dim=-1), mask[:, None].to(strong)
        count = weights.sum().clamp_min(1)
        one_hot = F.one_hot(probs.argmax(dim=-1), probs.shape[1]).to(probs)
        histogram = (one_hot * weights).sum(dim=0) / count
        mean = (probs * weights).sum(dim=0) / count
        target = _normalized(_divided(self.mean_probs, self.histogram)).to(probs)
        # A class that no strong view is predicted as counts as 0, in the authors' code too.
        output = _normalized(_divided(mean, histogram))
        return (target * (output + 1e-12).log()).sum() * mask.any()


def _divided(shares: Tensor, histogram: Tensor) -> Tensor:
    """Return the quotient; 0 where the histogram is empty."""
    empty = histogram == 0
    return (shares / histogram.masked_fill(empty, 1)).masked_fill(empty, 0)


def _normalized(values: Tensor) -> Tensor:
    return values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
