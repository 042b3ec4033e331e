"""UDA: unsupervised data augmentation (Xie et al., NeurIPS 2020, arXiv:1904.12848)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

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
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32, sharpen

_SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda t: t,
    "log": lambda t: 1 - math.exp(-5 * t),
    "exp": lambda t: math.exp(5 * (t - 1)),
}


class UDA(Algorithm):
    """Train strong views on the sharpened predictions for confident weak views.

    With training signal annealing, labeled images that are predicted too well for the progress of
    the run are left out of the supervised loss.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of UDA."""

        temperature: float = option(
            0.4, gt=0, help="sharpening of the targets; 1 for none", source="USB's code"
        )
        confidence_threshold: float = option(
            0.8, ge=0, le=1, help="minimum confidence of a target (beta)", source="USB's code"
        )
        annealing: Literal["none", "linear", "log", "exp"] = option(
            "none",
            help="schedule of training signal annealing",
            source="USB's code: none",
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the consistency loss; 0 for none", source="USB's code"
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one", source="USB's settings: 7"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("annealed", "Labeled images in use", "Share that annealing keeps."),
    )
    config: Config

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Cross-entropy of the labels + w · KL(sharpened weak || strong)."""
        c = self.config
        groups = [batch.labeled_weak[0], batch.unlabeled_weak[0], batch.unlabeled_strong[0]]
        logits = at_least_float32(ctx.model(torch.cat(groups)))
        labeled, weak, strong = torch.split(logits, [len(group) for group in groups])
        probs = ctx.refine(weak.detach().softmax(dim=-1))
        weights = ctx.weigh(probs, probs.amax(dim=-1) >= c.confidence_threshold)
        targets = sharpen(probs, c.temperature)
        divergence = F.kl_div(strong.log_softmax(dim=-1), targets, reduction="none").sum(dim=-1)
        supervised, kept = self._supervised(labeled, batch.labels, ctx)
        return StepOutput(
            losses={
                "supervised": Loss(supervised),
                "unsupervised": Loss((divergence * weights).mean(), c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels.weighted(targets, weights),
            metrics={"annealed": kept},
        )

    def _supervised(self, logits: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the mean loss over the images that annealing keeps, and their share."""
        losses = F.cross_entropy(logits, labels, reduction="none")
        if self.config.annealing == "none":
            return ctx.weigh_labels(losses).mean(), torch.ones_like(losses.detach().mean())
        progress = _SCHEDULES[self.config.annealing](ctx.step / ctx.max_steps)
        threshold = progress * (1 - 1 / self.task.num_classes) + 1 / self.task.num_classes
        # Gathered: the divisor is the number of images kept in the whole batch.
        keep = (-ctx.all_gather(losses.detach())).exp() <= threshold
        losses = ctx.all_gather(ctx.weigh_labels(losses))
        return (losses * keep).sum() / keep.sum().clamp_min(1), keep.to(losses).mean()
