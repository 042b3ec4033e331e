"""Describe images by the outputs of several stages of a backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ssl_toolkit.interfaces import Backbone, ForwardOutput

STAGES = 4
"""Stages at most, evenly spaced; the last is one of them."""
CHANNELS = 256
"""Channels of a stage at most, evenly spaced."""


@contextmanager
def stage_statistics(backbone: Backbone, size: int) -> Iterator[Callable[[ForwardOutput], Tensor]]:
    """Record the outputs of stages; yield a function of the last forward that returns (N, D).

    These are the means, then the standard deviations over all positions, of channels of each
    stage. They are the features themselves if nothing was recorded: the backbone has no stages, or
    features came in place of images.

    Args:
        backbone: Backbone whose `Backbone.stage_modules` are observed.
        size: Length of the features without those of `Backbone.use_stages`.
    """
    recorded: list[Tensor] = []

    def record(_module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim in (3, 4):
            recorded.append(_statistics(output))

    def read(output: ForwardOutput) -> Tensor:
        parts = [*recorded] or [output.features[:, :size].float()]
        recorded.clear()
        return torch.cat(parts, dim=1)

    modules = [*backbone.stage_modules()]
    every = -(-len(modules) // STAGES) or 1
    hooks = [module.register_forward_hook(record) for module in modules[::-1][::every]]
    try:
        yield read
    finally:
        for hook in hooks:
            hook.remove()


def _statistics(output: Tensor) -> Tensor:
    """Return statistics (N, 2 K) of K channels of maps (N, C, H, W) or tokens (N, L, C)."""
    is_map = output.ndim == 4
    every = -(-output.shape[1 if is_map else 2] // CHANNELS)
    chosen = output[:, ::every] if is_map else output[..., ::every]
    std, mean = torch.std_mean(chosen.float(), dim=(2, 3) if is_map else (1,), correction=0)
    return torch.cat([mean, std], dim=1)
