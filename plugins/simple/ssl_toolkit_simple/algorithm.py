"""SimPLE (Hu, Yang, Hu and Nevatia, CVPR 2021, arXiv:2103.16725)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    SIMPLE_SETTINGS,
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
from ssl_toolkit.ops import (
    at_least_float32,
    average_and_sharpen,
    interleaved_forward,
    l2_consistency,
    rampup,
    soft_cross_entropy,
)
from ssl_toolkit_simple.pair_loss import (
    Distance,
    pair_loss,
    pair_masks,
    pair_statistics,
    pair_weights,
)
from ssl_toolkit_simple.pair_metrics import PAIR_METRICS


class SimPLE(Algorithm):
    """Consistency of each image with its own pseudo label and with those of similar images.

    Pseudo labels come from the teacher's predictions on weak views, the gradient from strong views.
    Labeled and unlabeled images share one forward pass; the authors' code interleaves them into
    batches of B with a forward pass each (option ``interleaved``).
    """

    family: ClassVar[str] = "pairs"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine", "weigh", "weigh_labels"})
    auto_rank: ClassVar[int] = 50
    auto_rank_from_scratch: ClassVar[int] = 100
    metrics = PAIR_METRICS

    class Config(Options):
        """Options of SimPLE."""

        temperature: float = option(
            0.5, gt=0, help="sharpening of the pseudo labels; 1 for none", source="paper"
        )
        weak_views: int = option(
            2, ge=1, help="weak views for each pseudo label (K)", source="authors"
        )
        strong_views: int = option(
            2,
            ge=1,
            help="strong views of each unlabeled image (K_strong, the K of the paper's tables)",
            source="this project, for time; paper: 7 (CIFAR-10, SVHN), 4 or 2 (CIFAR-100), 7 or 2",
        )
        confidence_threshold: float = option(
            0.95, ge=0, le=1, help="a pseudo label counts if strictly above it", source="paper"
        )
        similarity_threshold: float = option(
            0.9, ge=0, le=1, help="a pair counts if strictly more similar", source="paper"
        )
        unsupervised_weight: float = option(
            75.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="paper, CIFAR-10"
        )
        pair_weight: Annotated[float, Field(ge=0)] | Literal["same"] | None = option(
            None,
            help="weight of the Pair Loss; 0 for none; same: unsupervised_weight; null: "
            "unsupervised_weight / (2 classes)",
            source="this project, docs/explanation/stability-of-training; paper and authors: same",
        )
        rampup_fraction: float = option(
            0.3,
            ge=0,
            le=1,
            help="share of the run over which both weights rise from 0; 0 for no ramp",
            source="this project, for short runs; the authors use none",
        )
        rampup_steps: int | None = option(
            None,
            ge=0,
            help="the same in steps, in place of the share; 0 for no ramp",
            in_steps=True,
        )
        pair_distance: Distance = option(
            "bhattacharyya", help="distance of the Pair Loss", source="paper"
        )
        confidence_weighted: bool = option(
            True,
            help="multiply the Pair Loss by the confidence of the pseudo label",
            source="paper; the authors' code only thresholds it",
        )
        unsupervised_loss: Literal["l2", "cross_entropy"] = option(
            "l2", help="form of the unsupervised loss", source="paper"
        )
        pseudo_labels_from: Literal["teacher", "model"] = option(
            "teacher",
            help="source: the averaged weights in eval mode, or the live ones in train mode",
            source="authors' code; MixMatch's own uses the live ones",
        )
        interleaved: bool = option(
            False,
            help="interleave into batches of B and forward each on its own",
            source="False: one pass, faster, BatchNorm sees the whole mixture; authors: True",
        )
        gather_pairs: bool = option(
            False,
            help="pair across the whole batch where several processes share it, not within parts; "
            "never across the batches of optimizer.accumulation_steps",
        )
        unlabeled_ratio: int = option(
            1, ge=1, help="unlabeled images for each labeled one", source="paper"
        )

    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {
            **SIMPLE_SETTINGS,
            "options": {
                "strong_views": 7,
                "pair_weight": "same",
                "confidence_weighted": False,
                "rampup_steps": 0,
                "interleaved": True,
            },
        }
    }
    config: Config

    def views(self) -> Views:
        """Return one weak labeled view, K weak and K_strong strong unlabeled views."""
        return Views(
            unlabeled_weak=self.config.weak_views,
            unlabeled_strong=self.config.strong_views,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return L_X + r · (lambda_U · L_U + lambda_P · L_P), the paper's algorithm 1."""
        c = self.config
        # q_b: mean over the K weak views, sharpened; every strong view of u_b gets the same one.
        weak = ctx.view_logits(batch.unlabeled_weak, c.pseudo_labels_from)
        probs = average_and_sharpen(weak, c.temperature, ctx.refine)
        targets = probs.repeat(c.strong_views, 1)

        images = torch.cat([batch.labeled_weak[0], *batch.unlabeled_strong])
        if c.interleaved:
            logits = interleaved_forward(ctx.model, images, len(batch.labels))
        else:
            logits = ctx.model(images)
        labeled, unlabeled = torch.split(logits, [len(batch.labels), len(targets)])

        pairs = unlabeled, targets
        if c.gather_pairs:
            pairs = ctx.all_gather(unlabeled), ctx.all_gather(targets)
        phi_c, phi_s = pair_weights(pairs[1], c.confidence_threshold, c.similarity_threshold)
        count = len(probs)  # rows of the first strong view
        weights = ctx.weigh(probs, self._local(phi_c > 0, ctx)[:count])
        of_rows = weights.repeat(c.strong_views)
        of_pairs = ctx.all_gather(of_rows) if c.gather_pairs else of_rows
        masks = pair_masks(of_pairs > 0, phi_s)
        anchor = phi_c * of_pairs if c.confidence_weighted else of_pairs.to(phi_c)

        supervised = F.cross_entropy(at_least_float32(labeled), batch.labels, reduction="none")
        unsupervised = self._unsupervised(unlabeled, targets, of_rows)
        pair = pair_loss(*pairs, anchor, phi_s, c.pair_distance)
        ramp = rampup(ctx.step, ctx.max_steps, c.rampup_fraction, c.rampup_steps)
        return StepOutput(
            losses={
                "supervised": Loss(ctx.weigh_labels(supervised).mean()),
                "unsupervised": Loss(unsupervised, ramp * c.unsupervised_weight),
                "pair": Loss(pair, ramp * self._pair_weight(probs.shape[-1])),
            },
            pseudo_labels=PseudoLabels.weighted(probs, weights),
            pairs={k: self._local(m, ctx)[:count, :count] for k, m in masks.items()},
            metrics={f"pair_{k}": share for k, share in pair_statistics(masks).items()},
        )

    def _local(self, rows: Tensor, ctx: Context) -> Tensor:
        """Return the shard of this process, in each dimension, of rows computed for all."""
        for dim in range(rows.ndim if self.config.gather_pairs else 0):
            rows = ctx.local_shard(rows, dim)
        return rows

    def _unsupervised(self, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return L_U: the mean over all rows, where those at or below the threshold count 0."""
        if self.config.unsupervised_loss == "l2":
            return l2_consistency(logits, targets, weights)
        return (soft_cross_entropy(logits, targets) * weights).mean()

    def _pair_weight(self, classes: int) -> float:
        # The pseudo label of an image weighs lambda_U / C; its pairs 2 lambda_P times the share of
        # the images in its class. So both are equal if all images are in one class.
        weight = self.config.pair_weight
        if isinstance(weight, float):
            return weight
        return self.config.unsupervised_weight / (2 * classes if weight is None else 1)
