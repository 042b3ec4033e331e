"""The step of both algorithms (Berthelot et al., NeurIPS 2019, arXiv:1905.02249)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    GOOGLE_SETTINGS,
    SIMPLE_SETTINGS,
    Batch,
    Context,
    Loss,
    Options,
    PseudoLabels,
    StepOutput,
    option,
)
from ssl_toolkit.ops import (
    average_and_sharpen,
    interleaved_forward,
    l2_consistency,
    mixup,
    rampup,
    sample_beta,
    soft_cross_entropy,
)


class MixingOptions(Options):
    """Options of both MixMatch and MixMatch Enhanced."""

    temperature: float = option(
        0.5, gt=0, help="sharpening of the pseudo labels; 1 for none", source="MixMatch, sec. 3.5"
    )
    alpha: float = option(
        0.75,
        ge=0.01,
        le=1000,
        help="the share of a mixture is drawn from Beta(alpha, alpha); small: hardly any mixing",
        source="MixMatch, sec. 3.5",
    )
    weak_views: int = option(
        2, ge=1, help="weak views for each pseudo label (K)", source="MixMatch, sec. 3.5"
    )
    unsupervised_weight: float = option(
        75.0, ge=0, help="weight of the unsupervised loss; 0 for none", source="MixMatch, CIFAR-10"
    )
    rampup_fraction: float = option(
        0.3,
        ge=0,
        le=1,
        help="share of the run over which the weight rises from 0; 0 for no ramp",
        source="this project, for short runs; SimPLE's authors: the whole run",
    )
    rampup_steps: int | None = option(
        None,
        ge=0,
        help="the same in steps, in place of the share; 0 for no ramp",
        source="MixMatch's code: 16384",
        in_steps=True,
    )
    mixup_per: Literal["sample", "batch"] = option(
        "sample",
        help="whether each image or each step draws its share of the mixture",
        source="MixMatch's code; SimPLE's authors: batch",
    )
    pseudo_labels_from: Literal["teacher", "model"] = option(
        "teacher",
        help="source: the averaged weights in eval mode, or the live ones in train mode",
        source="SimPLE's authors; MixMatch's code: model",
    )
    interleaved: bool = option(
        False,
        help="interleave into batches of B and forward each on its own",
        source="False: one pass, faster, BatchNorm sees the whole mixture; MixMatch's code: True",
    )
    unlabeled_ratio: int = option(
        1, ge=1, help="unlabeled images for each labeled one", source="MixMatch"
    )


PROFILES: Mapping[str, Mapping[str, Any]] = {
    "reference": {
        **SIMPLE_SETTINGS,
        "options": {"rampup_fraction": 1.0, "mixup_per": "batch", "interleaved": True},
    },
    "original": {
        **GOOGLE_SETTINGS,
        "options": {
            "rampup_steps": 16384,
            "mixup_per": "sample",
            "interleaved": True,
            "pseudo_labels_from": "model",
        },
    },
}
"""The code of SimPLE's authors, and MixMatch's own (google-research/mixmatch)."""


def mixmatch_step(c: MixingOptions, batch: Batch, views: Tensor, ctx: Context) -> StepOutput:
    """Run MixMatch's algorithm 1 and eqs. 2-5 on one batch.

    Args:
        c: options of either algorithm.
        batch: batch of the step.
        views: (V, U, 3, H, W) unlabeled views to train on.
        ctx: context of the step.
    """
    # Eqs. 6-7: q_b from the K weak views; every trained view of u_b gets the same one.
    weak = ctx.view_logits(batch.unlabeled_weak, c.pseudo_labels_from)
    probs = average_and_sharpen(weak, c.temperature, ctx.refine)
    labels = F.one_hot(batch.labels, probs.shape[-1]).to(probs)

    # W is a shuffle of X^ and U^ together; the first B rows of the mixture are X', the rest U'.
    # Processes that share the batch mix all of it; each then keeps its own shard.
    images = _all_rows(batch.labeled_weak[0], views, ctx)
    targets = _all_rows(labels, probs.expand(len(views), *probs.shape), ctx)
    draws = sample_beta(c.alpha, len(images) if c.mixup_per == "sample" else 1, ctx.generator)
    permutation = torch.randperm(len(images), generator=ctx.generator)
    lam, partners = (t.to(images.device, non_blocking=True) for t in (draws, permutation))
    mixed = mixup(images, targets, lam, partners)  # eqs. 8-11
    images, targets = (_local_rows(rows, batch, len(views), ctx) for rows in mixed)

    count = len(batch.labels)
    logits = interleaved_forward(ctx.model, images, count) if c.interleaved else ctx.model(images)
    supervised = soft_cross_entropy(logits[:count], targets[:count]).mean()  # eq. 3
    unsupervised = l2_consistency(logits[count:], targets[count:])  # eq. 4

    ramp = rampup(ctx.step, ctx.max_steps, c.rampup_fraction, c.rampup_steps)
    weight = ramp * c.unsupervised_weight
    return StepOutput(
        losses={  # eq. 5
            "supervised": Loss(supervised),
            "unsupervised": Loss(unsupervised, weight),
        },
        pseudo_labels=PseudoLabels(
            probs, torch.ones_like(batch.unlabeled_indices, dtype=torch.bool)
        ),
    )


def _all_rows(labeled: Tensor, views: Tensor, ctx: Context) -> Tensor:
    """Return (B, ...) and (V, U, ...) of all processes as rows (B + V · U, ...)."""
    return torch.cat([ctx.all_gather(labeled), ctx.all_gather(views, dim=1).flatten(0, 1)])


def _local_rows(rows: Tensor, batch: Batch, views: int, ctx: Context) -> Tensor:
    """Return this process's shard of `_all_rows`, in the same order."""
    count = len(batch.labels) + views * len(batch.unlabeled_indices)
    if len(rows) == count:
        return rows
    labeled, unlabeled = rows.tensor_split([len(rows) * len(batch.labels) // count])
    unlabeled = ctx.local_shard(unlabeled.reshape(views, -1, *rows.shape[1:]), dim=1)
    return torch.cat([ctx.local_shard(labeled), unlabeled.flatten(0, 1)])
