"""ReMixMatch (Berthelot et al., ICLR 2020, arXiv:1911.09785)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit import (
    GOOGLE_SETTINGS,
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
from ssl_toolkit.ops import (
    align_distribution,
    at_least_float32,
    rampup,
    sharpen,
    soft_cross_entropy,
)
from ssl_toolkit_remixmatch.mixture import mix

BATCHES = 128
"""Batches in the running mean of the predictions: paper, section 3.1, and the authors' code."""


class ReMixMatch(Algorithm):
    """MixMatch with aligned pseudo labels of one weak view, which many strong views learn.

    The aligned and sharpened prediction for a weak view labels that view and several strong ones,
    and all of them are mixed with the labeled images. One strong view is also trained without
    mixing, and a head of its own predicts by how much it was rotated.
    """

    family: ClassVar[str] = "mixing"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine"})

    class Config(Options):
        """Options of ReMixMatch."""

        temperature: float = option(
            0.5, gt=0, help="sharpening of the pseudo labels; 1 for none (T)", source="paper: 0.5"
        )
        alpha: float = option(
            0.75,
            ge=0.01,
            le=1000,
            help="the share of a mixture is drawn from Beta(alpha, alpha); small: hardly mixed",
            source="paper: 0.75",
        )
        strong_views: int = option(
            8, ge=1, help="strong views of each unlabeled image (K)", source="paper: 8"
        )
        unsupervised_weight: float = option(
            1.5,
            ge=0,
            help="weight of the mixed unlabeled images; 0 for none (lambda_U)",
            source="paper: 1.5",
        )
        strong_weight: float = option(
            0.5,
            ge=0,
            help="weight of one strong view before mixing; 0 for none (lambda_U1)",
            source="paper: 0.5",
        )
        rotation_weight: float = option(
            0.5,
            ge=0,
            help="weight of the rotation loss (lambda_r)",
            source="paper: 0.5",
        )
        rampup_fraction: float = option(
            1 / 64,
            ge=0,
            le=1,
            help="share of the run over which both weights of unlabeled images rise from 0",
            source="authors' code: 16384 of 2^20 steps",
        )
        rampup_steps: int | None = option(
            None,
            ge=0,
            help="the same in steps, in place of the share; 0 for no ramp",
            source="authors' code: 16384",
            in_steps=True,
        )
        unlabeled_ratio: int = option(
            1, ge=1, help="unlabeled images for each labeled one", source="paper"
        )

    profiles: ClassVar[Mapping[str, Any]] = {
        "reference": {
            **GOOGLE_SETTINGS,
            "labeled_in_pool": True,
            "options": {"rampup_steps": 16384},
        }
    }
    run_defaults: ClassVar[Mapping[str, Any]] = {"augment": {"strong": "ctaugment"}}
    mixes_images: ClassVar[bool] = True
    pool_statistics: ClassVar[tuple[str, ...]] = ("recent_probs",)
    config: Config
    recent_probs: Tensor
    """(batches, C), mean predictions of the last batches, the latest last; uniform at first."""
    label_shares: Tensor
    """(C,), share of each class of the labeled images."""

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.rotation = nn.Linear(task.feature_dim, 4)
        uniform = torch.full((BATCHES, task.num_classes), 1 / task.num_classes)
        self.register_buffer("recent_probs", uniform)
        counts = torch.tensor(task.label_counts, dtype=torch.float32)
        self.register_buffer("label_shares", counts / counts.sum(), persistent=False)

    def views(self) -> Views:
        """One strong labeled view, one weak and K strong unlabeled ones."""
        return Views(
            labeled_weak=0,
            labeled_strong=1,
            unlabeled_weak=1,
            unlabeled_strong=self.config.strong_views,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """L_X + r · (lambda_U · L_U + lambda_U1 · L_U1) + lambda_r · L_r, algorithm 1."""
        c = self.config
        targets = self._pseudo_labels(batch.unlabeled_weak, ctx)
        unlabeled = torch.cat([batch.unlabeled_strong, batch.unlabeled_weak])
        images, mixed_targets = mix(batch, unlabeled, targets, c.alpha, ctx)
        strong = batch.unlabeled_strong[0]
        rotated, turns = rotate(strong, ctx)

        groups = [images, strong, rotated]
        features, logits = ctx.forward(torch.cat(groups))
        sizes = [len(group) for group in groups]
        mixed_logits, strong_logits, _ = torch.split(at_least_float32(logits), sizes)
        rotation_logits = at_least_float32(self.rotation(features[-len(rotated) :]))
        losses = soft_cross_entropy(mixed_logits, mixed_targets)
        count = len(batch.labels)
        ramp = rampup(ctx.step, ctx.max_steps, c.rampup_fraction, c.rampup_steps)
        return StepOutput(
            losses={
                "supervised": Loss(losses[:count].mean()),
                "unsupervised": Loss(losses[count:].mean(), ramp * c.unsupervised_weight),
                "strong": Loss(
                    soft_cross_entropy(strong_logits, targets).mean(), ramp * c.strong_weight
                ),
                "rotation": Loss(F.cross_entropy(rotation_logits, turns), c.rotation_weight),
            },
            pseudo_labels=PseudoLabels(targets, torch.ones_like(turns, dtype=torch.bool)),
        )

    def _pseudo_labels(self, weak: Tensor, ctx: Context) -> Tensor:
        """Return the aligned, sharpened predictions (U, C) for weak views (1, U, 3, H, W)."""
        logits = at_least_float32(ctx.view_logits(weak, by="model")[0])
        probs = logits.softmax(dim=-1)
        # As in the authors' code, the running mean is that of the batches before this one.
        mean = self.recent_probs.mean(dim=0)
        aligned = align_distribution(probs, self.label_shares, mean, exponent=1)
        total, count = probs.sum(dim=0), probs.new_full((), len(probs))
        latest = ctx.all_reduce_sum(total) / ctx.all_reduce_sum(count)
        self.recent_probs.copy_(torch.cat([self.recent_probs[1:], latest[None].to(mean)]))
        return sharpen(ctx.refine(aligned), self.config.temperature)


def rotate(images: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
    """Rotate images (U, 3, H, W) by random multiples of 90 degrees, and resize them to (H, W).

    Returns:
        The images, and the numbers of quarter turns (U,).
    """
    count = len(ctx.all_gather(images[:, 0, 0, 0]))
    turns = ctx.local_shard(torch.randint(4, (count,), generator=ctx.generator)).to(images.device)
    size = images.shape[2:]
    rotations = [torch.rot90(images, quarter, (2, 3)) for quarter in range(4)]
    all_four = torch.stack([F.interpolate(rotated, size) for rotated in rotations])
    return all_four[turns, torch.arange(len(images), device=images.device)], turns
