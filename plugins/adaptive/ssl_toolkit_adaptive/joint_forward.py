"""One forward of all views, and means over the batch of all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssl_toolkit import Batch, Context
from ssl_toolkit.ops import at_least_float32


def joint_logits(batch: Batch, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
    """Forward the labeled, weak and strong views together, so that they share BatchNorm.

    Returns:
        Logits (B, C), (U, C) and (U, C), float32 or wider.
    """
    groups = [batch.labeled_weak[0], batch.unlabeled_weak[0], batch.unlabeled_strong[0]]
    labeled, weak, strong = split_logits(groups, ctx)
    return labeled, weak, strong


def split_logits(groups: Sequence[Tensor], ctx: Context) -> tuple[Tensor, ...]:
    """Return the logits (n, C) of each group of n images, from one forward, float32 or wider."""
    logits = at_least_float32(ctx.model(torch.cat(list(groups))))
    return torch.split(logits, [len(group) for group in groups])


def batch_mean(values: Tensor, ctx: Context) -> Tensor:
    """Return the mean of values (n, ...) over the images of all processes; no gradient."""
    values = values.detach()
    return ctx.all_reduce_sum(values.sum(dim=0)) / ctx.all_reduce_sum(
        values.new_full((), len(values))
    )
