"""What both algorithms do in a step (Berthelot et al., NeurIPS 2019, arXiv:1905.02249)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import Batch, Context, Loss, Options, PseudoLabels, StepOutput, option
from ssl_toolkit.ops import (
    average_and_sharpen,
    interleave,
    l2_consistency,
    linear_rampup,
    mixup,
    sample_beta,
    soft_cross_entropy,
)


class MixingOptions(Options):
    """What MixMatch and MixMatch Enhanced have in common."""

    reference: ClassVar[dict[str, Any]] = {
        "rampup_fraction": 1.0,
        "mixup_per": "batch",
        "interleaved": True,
    }

    temperature: float = option(
        0.5, gt=0, help="sharpening of the guessed labels; 1 for none", source="MixMatch, sec. 3.5"
    )
    alpha: float = option(
        0.75,
        ge=0.01,
        le=1000,
        help="the share of a mixture is drawn from Beta(alpha, alpha); small: hardly any mixing",
        source="MixMatch, sec. 3.5",
    )
    weak_views: int = option(
        2, ge=1, help="weak views a label is guessed from (K)", source="MixMatch, sec. 3.5"
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
    )
    mixup_per: Literal["sample", "batch"] = option(
        "sample",
        help="whether each image or each step draws its share of the mixture",
        source="MixMatch's code; SimPLE's authors: batch",
    )
    pseudo_labels_from: Literal["teacher", "model"] = option(
        "teacher",
        help="who guesses: the averaged weights in eval mode, or the live ones in train mode",
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


def mixmatch_step(c: MixingOptions, batch: Batch, views: Tensor, ctx: Context) -> StepOutput:
    """MixMatch's algorithm 1 and eqs. 2-5 for one batch.

    Args:
        c: options of either algorithm.
        batch: of the step.
        views: (V, U, 3, H, W), what is trained on beside the labeled images.
        ctx: of the step.
    """
    # Eqs. 6-7: q_b from the K weak views; every trained view of u_b gets the same one.
    guess = average_and_sharpen(_guess_logits(c, batch.unlabeled_weak, ctx), c.temperature)
    labels = F.one_hot(batch.labels, guess.shape[-1]).to(guess)

    # W is a shuffle of X^ and U^ together; the first B rows of the mixture are X', the rest U'.
    # Processes that share the batch mix all of it, then each goes on with its part.
    images = _joined(batch.labeled_weak[0], views, ctx)
    targets = _joined(labels, guess.expand(len(views), *guess.shape), ctx)
    draws = sample_beta(c.alpha, len(images) if c.mixup_per == "sample" else 1, ctx.generator)
    permutation = torch.randperm(len(images), generator=ctx.generator)
    lam, partners = (t.to(images.device, non_blocking=True) for t in (draws, permutation))
    mixed = mixup(images, targets, lam, partners)  # eqs. 8-11
    images, targets = (_own(rows, batch, len(views), ctx) for rows in mixed)

    count = len(batch.labels)
    logits = _forward(c, images, count, ctx)
    supervised = soft_cross_entropy(logits[:count], targets[:count]).mean()  # eq. 3
    unsupervised = l2_consistency(logits[count:], targets[count:])  # eq. 4

    length = c.rampup_fraction * ctx.max_steps if c.rampup_steps is None else c.rampup_steps
    weight = linear_rampup(ctx.step, length) * c.unsupervised_weight
    return StepOutput(
        losses={  # eq. 5
            "supervised": Loss(supervised),
            "unsupervised": Loss(unsupervised, weight),
        },
        pseudo_labels=PseudoLabels(
            guess, torch.ones_like(batch.unlabeled_indices, dtype=torch.bool)
        ),
    )


def _guess_logits(c: MixingOptions, views: Tensor, ctx: Context) -> Tensor:
    """(K, U, 3, H, W) to (K, U, C), without gradient."""
    if c.pseudo_labels_from == "teacher":
        logits = ctx.teacher_forward(views.flatten(0, 1)).logits
        return logits.reshape(*views.shape[:2], -1)
    # One forward a view, as MixMatch does: each normalizes by the statistics of its own view.
    with torch.no_grad():
        answers = [ctx.forward(view, update_statistics=False).logits for view in views]
    return torch.stack(answers)


def _joined(labeled: Tensor, views: Tensor, ctx: Context) -> Tensor:
    """(B, ...) and (V, U, ...) of all processes as (B + V · U, ...) rows."""
    return torch.cat([ctx.all_gather(labeled), ctx.all_gather(views, dim=1).flatten(0, 1)])


def _own(rows: Tensor, batch: Batch, views: int, ctx: Context) -> Tensor:
    """This process's part of `_joined` rows, in the same order."""
    count = len(batch.labels) + views * len(batch.unlabeled_indices)
    if len(rows) == count:
        return rows
    labeled, unlabeled = rows.tensor_split([len(rows) * len(batch.labels) // count])
    unlabeled = ctx.local_shard(unlabeled.reshape(views, -1, *rows.shape[1:]), dim=1)
    return torch.cat([ctx.local_shard(labeled), unlabeled.flatten(0, 1)])


def _forward(c: MixingOptions, images: Tensor, batch_size: int, ctx: Context) -> Tensor:
    if not c.interleaved:
        return ctx.model(images)
    mixed = interleave(torch.split(images, batch_size))
    return torch.cat(interleave([ctx.model(part) for part in mixed]))
