"""Projection head, forward of all views, and aligned predictions of SimMatch and CoMatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit import Context, ForwardOutput
from ssl_toolkit.ops import align_distribution, at_least_float32

BATCHES = 32
"""Number of batches whose mean prediction is aligned to equal class shares."""


def projection_head(feature_dim: int, size: int) -> nn.Sequential:
    """Return a perceptron with one hidden layer, from features to embeddings of a size."""
    return nn.Sequential(
        nn.Linear(feature_dim, feature_dim), nn.LeakyReLU(0.1), nn.Linear(feature_dim, size)
    )


def split_forward(
    groups: Sequence[Tensor],
    forward: Callable[[Tensor], ForwardOutput],
    head: Callable[..., Tensor],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Forward all groups of images (n, 3, H, W) together.

    Args:
        groups: views of labeled and unlabeled images.
        forward: `Context.forward` or `Context.teacher_forward`.
        head: projection head, or its average.

    Returns:
        Logits (n, C) and embeddings (n, E) of unit length of each group, float32 or wider.
    """
    sizes = [len(group) for group in groups]
    features, logits = forward(torch.cat(list(groups)))
    embeddings = F.normalize(at_least_float32(head(features)))
    return torch.split(at_least_float32(logits), sizes), torch.split(embeddings, sizes)


def product(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of (n, k) and (k, m), which autocast would compute in half precision."""
    with torch.autocast(first.device.type, enabled=False):
        return first @ second.to(first)


def align_to_uniform(logits: Tensor, recent: Tensor, filled: Tensor, ctx: Context) -> Tensor:
    """Return predictions (n, C) divided by their mean over the last batches, and normalized.

    Args:
        logits: (n, C); no gradient.
        recent: (`BATCHES`, C) buffer of mean predictions, the latest last; updated.
        filled: () int64 buffer, number of batches so far; updated.
        ctx: context of the step.
    """
    probs = logits.detach().softmax(dim=-1)
    total = torch.cat([probs.sum(dim=0), probs.new_full((1,), len(probs))])
    total = ctx.all_reduce_sum(total)
    recent.copy_(torch.cat([recent[1:], (total[:-1] / total[-1])[None].to(recent)]))
    filled.add_(1)
    mean = recent.sum(dim=0) / filled.clamp_max(BATCHES)
    uniform = torch.full_like(mean, 1 / len(mean))
    return align_distribution(probs, uniform, mean, exponent=1).to(probs)
