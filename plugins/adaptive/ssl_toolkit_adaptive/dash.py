"""Dash (Xu et al., ICML 2021, arXiv:2109.00650)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from ssl_toolkit.ops import at_least_float32, sharpen, soft_cross_entropy
from ssl_toolkit_adaptive.joint_forward import joint_logits


class Dash(Algorithm):
    """FixMatch with a threshold on the loss that falls geometrically during training.

    A warm-up on the labeled images alone gives the first threshold: their mean loss at its end.
    """

    family: ClassVar[str] = "thresholds"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})

    class Config(Options):
        """Options of Dash."""

        gamma: float = option(
            1.27, ge=1, help="factor by which the threshold falls each time", source="paper"
        )
        threshold_factor: float = option(
            1.0001, gt=0, help="factor of the first threshold (C)", source="paper; USB's code"
        )
        minimum_threshold: float = option(
            0.05,
            ge=0,
            help="smallest threshold of the loss; 0.05 is a confidence of 0.951",
            source="authors' code and USB's code: 0.05",
        )
        warmup_fraction: float = option(
            0.05,
            ge=0,
            le=1,
            help="share of the run on the labeled images alone; 0 to start at once",
            source="this project, for short runs; authors' settings: 10 of 1,024 epochs; "
            "USB's code: 2,048 steps",
        )
        decay_fraction: float = option(
            0.01,
            gt=0,
            le=1,
            help="share of the run between two reductions of the threshold",
            source="USB's code: 10 of 1,024 epochs; authors' settings: 9",
        )
        temperature: float = option(
            0.5,
            gt=0,
            help="sharpening of the targets while the threshold falls; hard labels after that",
            source="authors' code and USB's code: 0.5",
        )
        mean_over_selected: bool = option(
            False,
            help="divide the loss by the number of selected images, not of all unlabeled ones",
            source="USB's code: False; authors' code: True",
        )
        unsupervised_weight: float = option(
            1.0,
            ge=0,
            help="weight of the unsupervised loss; 0 for none",
            source="USB's code: 1; authors' code: 0.9",
        )
        unlabeled_ratio: int = option(
            7, ge=1, help="unlabeled images for each labeled one", source="authors' code: 7"
        )

    profiles: ClassVar[Mapping[str, Any]] = {
        "reference": {
            **GOOGLE_SETTINGS,
            "labeled_in_pool": True,
            "augment": {"strong": "ctaugment"},
            "options": {
                "mean_over_selected": True,
                "warmup_fraction": 10 / 1024,
                "threshold_factor": 1 / 1.27,  # k starts at 1, and there is no C
                "decay_fraction": 9 / 1024,
                "unsupervised_weight": 0.9,
            },
        }
    }
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss_threshold", "Loss threshold", "Largest loss of a pseudo label in use."),
    )
    config: Config
    first_threshold: Tensor
    """(), rho-hat: mean loss of the labeled images at the end of the warm-up."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("first_threshold", torch.zeros(()))

    def views(self) -> Views:
        """One weak labeled view, one weak and one strong unlabeled one."""
        return Views(
            unlabeled_weak=1, unlabeled_strong=1, unlabeled_ratio=self.config.unlabeled_ratio
        )

    @property
    def warmup_steps(self) -> int:
        """Number of steps on the labeled images alone."""
        return round(self.config.warmup_fraction * self.task.max_steps)

    @property
    def scan_every(self) -> int:
        """The end of the warm-up; other calls of `scan` do nothing."""
        return self.warmup_steps or self.task.max_steps

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Set the first threshold at its end, from labeled images (n, 3, H, W)."""
        if ctx.step != self.warmup_steps:
            return
        losses = [
            F.cross_entropy(at_least_float32(ctx.teacher(images)), labels, reduction="none")
            for _, images, labels in labeled
        ]
        self.first_threshold.copy_(torch.cat(losses).mean())

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """F_s + w · F_u over the images whose loss is at most rho_t = C · gamma^-k · rho-hat."""
        c = self.config
        if ctx.step < self.warmup_steps:
            labeled = at_least_float32(ctx.model(batch.labeled_weak[0]))
            supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
            return StepOutput({"supervised": Loss(ctx.weigh_labels(supervised).mean())})

        labeled, weak, strong = joint_logits(batch, ctx)
        reductions = int((ctx.step - self.warmup_steps) / (c.decay_fraction * ctx.max_steps))
        threshold = c.threshold_factor * c.gamma**-reductions * self.first_threshold
        is_smallest = threshold <= c.minimum_threshold
        threshold = threshold.clamp_min(c.minimum_threshold)

        probs = ctx.refine(weak.detach().softmax(dim=-1))
        hard = F.one_hot(probs.argmax(dim=-1), self.task.num_classes).to(probs)
        weights = ctx.weigh(probs, -probs.amax(dim=-1).log() <= threshold)
        targets = torch.where(is_smallest, hard, sharpen(probs, c.temperature))
        supervised = F.cross_entropy(labeled, batch.labels, reduction="none")
        losses = soft_cross_entropy(strong, targets) * weights
        if c.mean_over_selected:
            # Gathered: the divisor is the number of images selected in the whole batch.
            whole = ctx.all_gather(weights > 0)
            unsupervised = ctx.all_gather(losses).sum() / whole.sum().clamp_min(1)
        else:
            unsupervised = losses.mean()
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss(unsupervised, c.unsupervised_weight),
            },
            pseudo_labels=PseudoLabels.weighted(targets, weights),
            metrics={"loss_threshold": threshold},
        )
