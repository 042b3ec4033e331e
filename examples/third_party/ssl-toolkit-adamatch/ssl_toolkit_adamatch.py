"""AdaMatch (Berthelot et al., ICLR 2022, arXiv:2106.04732) for semi-supervised learning."""

from __future__ import annotations

import math
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
    TaskInfo,
    Views,
    option,
)
from ssl_toolkit.ops import soft_cross_entropy


@final
class AdaMatch(Algorithm):
    """FixMatch with aligned pseudo labels, a relative threshold and interpolated logits.

    Labeled and unlabeled images are the paper's source and target, here from one domain.
    """

    api_version = (1, 0)

    class Config(Options):
        """Options of AdaMatch."""

        relative_threshold: float = option(
            0.9, ge=0, le=1, help="fraction of the labeled images' confidence (tau)", source="paper"
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss after warm-up", source="paper"
        )
        distribution_decay: float = option(
            0.99,
            ge=0,
            lt=1,
            help="decay of the class distributions per step",
            source="README",
        )
        unlabeled_ratio: int = option(
            3, ge=1, help="unlabeled images per labeled one", source="authors' code"
        )

    config: Config
    labeled_classes: Tensor
    """(C,) running mean of the probabilities of labeled images."""
    unlabeled_classes: Tensor
    """(C,) running mean of the probabilities of unlabeled images."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        uniform = torch.full((task.num_classes,), 1 / task.num_classes)
        self.register_buffer("labeled_classes", uniform)
        self.register_buffer("unlabeled_classes", uniform.clone())

    def views(self) -> Views:
        """Request one weak and one strong view of every image."""
        return Views(
            labeled_strong=1,
            unlabeled_weak=1,
            unlabeled_strong=1,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return L_source + mu(t) · L_target, the paper's loss function."""
        labeled = torch.cat([batch.labeled_weak[0], batch.labeled_strong[0]])
        unlabeled = torch.cat([batch.unlabeled_weak[0], batch.unlabeled_strong[0]])
        logits = ctx.model(torch.cat([labeled, unlabeled])).float()
        joint, unlabeled_logits = torch.split(logits, [len(labeled), len(unlabeled)])
        alone = ctx.forward(labeled, update_statistics=False).logits.float()
        # Random logit interpolation: lambda is drawn for each logit.
        mixed = torch.lerp(alone, joint, self._lambda(batch, ctx).to(joint))
        weak, strong = mixed.chunk(2)
        unlabeled_weak, unlabeled_strong = unlabeled_logits.chunk(2)

        probs, threshold = self._pseudo_labels(weak.detach(), unlabeled_weak.detach(), ctx)
        mask = probs.amax(dim=-1) >= threshold
        target = (soft_cross_entropy(unlabeled_strong, probs) * mask).mean()
        source = F.cross_entropy(weak, batch.labels) + F.cross_entropy(strong, batch.labels)
        return StepOutput(
            losses={
                "supervised": Loss(source / 2),
                "unsupervised": Loss(target, self.config.unsupervised_weight * warm_up(ctx)),
            },
            pseudo_labels=PseudoLabels(probs, mask),
            metrics={"threshold": threshold},
        )

    def _lambda(self, batch: Batch, ctx: Context) -> Tensor:
        """Draw (2 · B, C) uniform numbers for this process's share of the batch."""
        whole = len(ctx.all_gather(batch.labels))
        drawn = torch.rand(2, whole, self.task.num_classes, generator=ctx.generator)
        return ctx.local_shard(drawn, dim=1).flatten(0, 1)

    def _pseudo_labels(
        self, labeled: Tensor, unlabeled: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """Return aligned pseudo labels (U, C) and their 0-dim confidence threshold."""
        labeled, unlabeled = labeled.softmax(dim=-1), unlabeled.softmax(dim=-1)
        # Means over the whole batch: each process adds the means of its share, and 1 to count it.
        top = labeled.amax(dim=-1).mean()[None]
        means = [labeled.mean(dim=0), unlabeled.mean(dim=0), top, torch.ones_like(top)]
        totals = ctx.all_reduce_sum(torch.cat(means))
        *sums, processes = torch.split(totals, [len(mean) for mean in means])
        labeled_mean, unlabeled_mean, confidence = (total / processes for total in sums)
        share = 1 - self.config.distribution_decay
        self.labeled_classes.lerp_(labeled_mean, share)
        self.unlabeled_classes.lerp_(unlabeled_mean, share)
        aligned = align(unlabeled, self.labeled_classes, self.unlabeled_classes)
        return aligned, self.config.relative_threshold * confidence[0]


def align(probs: Tensor, expected: Tensor, actual: Tensor) -> Tensor:
    """Scale probabilities by expected / actual and normalize each row: distribution alignment.

    Args:
        probs: (N, C) probabilities.
        expected: (C,) class distribution that the predictions should have.
        actual: (C,) class distribution that they have.

    Returns:
        (N, C) probabilities.
    """
    # The authors' epsilon: a class that was never predicted must not become infinite.
    scaled = probs * ((expected + 1e-6) / (actual + 1e-6))
    return scaled / scaled.sum(dim=-1, keepdim=True)


def warm_up(ctx: Context) -> float:
    """mu(t) = 1/2 - cos(min(pi, 2 pi t / T)) / 2: from 0 to 1 over the first half of the run."""
    return 0.5 - math.cos(min(math.pi, 2 * math.pi * ctx.step / ctx.max_steps)) / 2
