"""Mixing of the images of a step, of all processes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import Batch, Context
from ssl_toolkit.ops import mixup, sample_beta


def mix(
    batch: Batch, unlabeled: Tensor, targets: Tensor, alpha: float, ctx: Context
) -> tuple[Tensor, Tensor]:
    """Mix the labeled images and all unlabeled views with each other.

    Processes that share the batch mix all of it; each then keeps its own shard.

    Args:
        batch: batch of the step.
        unlabeled: (V, U, 3, H, W) views.
        targets: (U, C) pseudo labels.
        alpha: the share of each mixture is drawn from Beta(alpha, alpha).
        ctx: context of the step.

    Returns:
        (B + V · U, 3, H, W) images and (B + V · U, C) targets, the labeled ones first.
    """
    labels = F.one_hot(batch.labels, targets.shape[-1]).to(targets)
    views = len(unlabeled)
    labeled_count = len(ctx.all_gather(batch.labels))

    def all_rows(labeled: Tensor, pool: Tensor) -> Tensor:
        return torch.cat([ctx.all_gather(labeled), ctx.all_gather(pool, dim=1).flatten(0, 1)])

    def local_rows(rows: Tensor) -> Tensor:
        labeled, pool = rows.tensor_split([labeled_count])
        pool = ctx.local_shard(pool.reshape(views, -1, *rows.shape[1:]), dim=1)
        return torch.cat([ctx.local_shard(labeled), pool.flatten(0, 1)])

    images = all_rows(batch.labeled_strong[0], unlabeled)
    rows = all_rows(labels, targets.expand(views, *targets.shape))
    shares = sample_beta(alpha, len(images), ctx.generator)
    partners = torch.randperm(len(images), generator=ctx.generator)
    mixed_images, mixed_targets = mixup(
        images, rows, shares.to(images.device), partners.to(images.device)
    )
    return local_rows(mixed_images), local_rows(mixed_targets)
