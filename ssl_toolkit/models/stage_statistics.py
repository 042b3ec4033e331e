"""Describe images by the outputs of several stages of a backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ssl_toolkit.config.sections import Auto
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.interfaces import Backbone, ForwardOutput
from ssl_toolkit.models.classifier import in_eval_mode

STAGES = 4
"""Stages at most, evenly spaced; the last is one of them."""
CHANNELS = 256
"""Channels of a stage at most, evenly spaced."""


class _Recorder:
    """Hooks of modules; no closures, because copies of the modules need their own."""

    def __init__(self, summary: Callable[[Tensor], Tensor]) -> None:
        self.summary = summary
        self.recorded: list[Tensor] = []

    def record(self, _module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim in (3, 4):
            self.recorded.append(self.summary(output))

    def start(self, *_: Any) -> None:
        self.recorded = []  # a forward that failed leaves some

    def append(self, _module: Any, _inputs: Any, features: Tensor) -> Tensor:
        recorded, self.recorded = self.recorded, []
        return torch.cat([features, *recorded], dim=1)


def append_stages(
    backbone: Backbone, name: str, count: int | Auto, images: Tensor
) -> tuple[int, ...]:
    """Append the means of the outputs of the last stages to the features of a backbone.

    Earlier stages describe textures and shapes.

    Args:
        backbone: Backbone; its `feature_dim` becomes the sum of the result.
        name: Its name, for the message.
        count: Number of its `Backbone.stage_modules`; ``auto`` for at most 2, and for none of a
            backbone without a `Backbone.mean`, which has no published weights.
        images: Images (N, C, H, W) that it takes.

    Returns:
        Dimensions of the parts of a feature vector: the final features, then each stage.

    Raises:
        ConfigError: The backbone has fewer stages that return maps or tokens.
    """
    last = count if count != "auto" else 2 if backbone.mean else 0
    modules, recorder = [*backbone.stage_modules()][-last:] if last else [], _Recorder(_mean)
    for module in modules:
        module.register_forward_hook(recorder.record)
    if modules:
        with torch.no_grad(), in_eval_mode(backbone):
            backbone(images)
    sizes = [mean.shape[1] for mean in recorder.recorded]
    if count not in ("auto", len(sizes)):
        raise ConfigError(f"model.stages={count}: backbone {name!r} allows at most {len(sizes)}")
    if sizes:
        backbone.register_forward_pre_hook(recorder.start)
        backbone.register_forward_hook(recorder.append)
    blocks = (backbone.feature_dim, *sizes)
    backbone.feature_dim = sum(blocks)
    return blocks


def _mean(output: Tensor) -> Tensor:
    """Return the means (N, C) over positions of maps (N, C, H, W) or tokens (N, L, C)."""
    return output.mean(dim=(2, 3) if output.ndim == 4 else 1)


@contextmanager
def stage_statistics(backbone: Backbone, size: int) -> Iterator[Callable[[ForwardOutput], Tensor]]:
    """Record the outputs of stages; yield a function of the last forward that returns (N, D).

    These are the means, then the standard deviations over all positions, of channels of each
    stage. They are the features themselves if nothing was recorded: the backbone has no stages, or
    features came in place of images.

    Args:
        backbone: Backbone whose `Backbone.stage_modules` are observed.
        size: Length of the features without those of `append_stages`.
    """
    recorder = _Recorder(_statistics)

    def read(output: ForwardOutput) -> Tensor:
        parts = recorder.recorded or [output.features[:, :size].float()]
        recorder.start()
        return torch.cat(parts, dim=1)

    modules = [*backbone.stage_modules()]
    every = -(-len(modules) // STAGES) or 1
    hooks = [module.register_forward_hook(recorder.record) for module in modules[::-1][::every]]
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
