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
    Guess,
    Loss,
    Options,
    StepOutput,
    Task,
    Views,
    option,
)
from ssl_toolkit.ops import soft_cross_entropy


@final
class AdaMatch(Algorithm):
    """FixMatch with aligned pseudo labels, a relative threshold and interpolated logits.

    Labelled and unlabelled images are the paper's source and target domain, which here are one.
    """

    api_version = (1, 0)

    class Config(Options):
        """Options of AdaMatch."""

        relative_threshold: float = option(
            0.9, ge=0, le=1, help="share of the labelled images' confidence (tau)", source="paper"
        )
        unsupervised_weight: float = option(
            1.0, ge=0, help="weight of the unsupervised loss once it is warm", source="paper"
        )
        distribution_decay: float = option(
            0.99, ge=0, lt=1, help="of the running class distributions, each step", source="README"
        )
        unlabelled_ratio: int = option(
            3, ge=1, help="unlabelled images for each labelled one", source="authors' code"
        )

    config: Config
    labelled_classes: Tensor
    """(C,) running mean of the probabilities of labelled images."""
    unlabelled_classes: Tensor
    """(C,) the same of unlabelled images."""

    def __init__(self, config: Options, task: Task) -> None:
        super().__init__(config, task)
        uniform = torch.full((task.num_classes,), 1 / task.num_classes)
        self.register_buffer("labelled_classes", uniform)
        self.register_buffer("unlabelled_classes", uniform.clone())

    def views(self) -> Views:
        """One weak and one strong view of every image."""
        return Views(
            labelled_strong=1,
            unlabelled_weak=1,
            unlabelled_strong=1,
            unlabelled_ratio=self.config.unlabelled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_source + mu(t) · L_target, the paper's loss function."""
        labelled = torch.cat([batch.labelled_weak[0], batch.labelled_strong[0]])
        unlabelled = torch.cat([batch.unlabelled_weak[0], batch.unlabelled_strong[0]])
        logits = ctx.model(torch.cat([labelled, unlabelled])).float()
        joint, unlabelled_logits = torch.split(logits, [len(labelled), len(unlabelled)])
        alone = ctx.forward(labelled, update_statistics=False).logits.float()
        # Random logit interpolation: lambda is drawn for each logit.
        mixed = torch.lerp(alone, joint, self._lambda(batch, ctx).to(joint))
        weak, strong = mixed.chunk(2)
        unlabelled_weak, unlabelled_strong = unlabelled_logits.chunk(2)

        guess, threshold = self._guess(weak.detach(), unlabelled_weak.detach(), ctx)
        used = guess.amax(dim=-1) >= threshold
        target = (soft_cross_entropy(unlabelled_strong, guess) * used).mean()
        source = F.cross_entropy(weak, batch.labels) + F.cross_entropy(strong, batch.labels)
        return StepOutput(
            losses={
                "supervised": Loss(source / 2),
                "unsupervised": Loss(target, self.config.unsupervised_weight * warm_up(ctx)),
            },
            guess=Guess(guess, used),
            metrics={"threshold": threshold},
        )

    def _lambda(self, batch: Batch, ctx: Context) -> Tensor:
        """(2 · B, C) uniform numbers, those of this process's part of the batch."""
        whole = len(ctx.gather(batch.labels))
        drawn = torch.rand(2, whole, self.task.num_classes, generator=ctx.generator)
        return ctx.share(drawn, dim=1).flatten(0, 1)

    def _guess(self, labelled: Tensor, unlabelled: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Aligned pseudo labels (U, C) and the 0-dim confidence that they need."""
        labelled, unlabelled = labelled.softmax(dim=-1), unlabelled.softmax(dim=-1)
        # Means over the whole batch: each process adds those of its part, and a one to count it.
        top = labelled.amax(dim=-1).mean()[None]
        parts = [labelled.mean(dim=0), unlabelled.mean(dim=0), top, torch.ones_like(top)]
        totals = ctx.total(torch.cat(parts))
        *means, processes = torch.split(totals, [len(part) for part in parts])
        seen_labelled, seen_unlabelled, confidence = (mean / processes for mean in means)
        share = 1 - self.config.distribution_decay
        self.labelled_classes.lerp_(seen_labelled, share)
        self.unlabelled_classes.lerp_(seen_unlabelled, share)
        aligned = align(unlabelled, self.labelled_classes, self.unlabelled_classes)
        return aligned, self.config.relative_threshold * confidence[0]


def align(probs: Tensor, wanted: Tensor, found: Tensor) -> Tensor:
    """Scale probabilities by wanted / found and normalise each row: distribution alignment.

    Args:
        probs: (N, C) probabilities.
        wanted: (C,) distribution of classes that the guesses should have.
        found: (C,) distribution that they have.

    Returns:
        (N, C) probabilities.
    """
    # The small number is the authors': a class that was never guessed must not become infinite.
    scaled = probs * ((wanted + 1e-6) / (found + 1e-6))
    return scaled / scaled.sum(dim=-1, keepdim=True)


def warm_up(ctx: Context) -> float:
    """mu(t) = 1/2 - cos(min(pi, 2 pi t / T)) / 2: from 0 to 1 over the first half of the run."""
    return 0.5 - math.cos(min(math.pi, 2 * math.pi * ctx.step / ctx.max_steps)) / 2
