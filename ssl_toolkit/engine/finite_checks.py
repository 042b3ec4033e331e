"""Check that weights and states are finite before they are saved."""

from __future__ import annotations

import torch
from torch import nn

from ssl_toolkit.errors import TrainingError
from ssl_toolkit.interfaces import Algorithm
from ssl_toolkit.torch_workarounds import norms

SMALLEST_SCALE = 2.0**-20
"""The scaler of fp16 halves it at each overflow; below this, no step succeeds."""


def check_finite(
    step: int, model: nn.Module, algorithm: Algorithm, name: str, scaler: torch.amp.GradScaler
) -> None:
    """Raise an error if the weights or the state of the algorithm are not finite.

    Args:
        step: number of completed steps.
        model: the live model.
        algorithm: algorithm of the run.
        name: name of the algorithm.
        scaler: the loss scaler.

    Raises:
        TrainingError: one line that names the step.
    """
    if not all_finite(model):
        raise TrainingError(
            f"a weight is not finite after step {step}; the last finite checkpoint is kept; try a "
            "lower --lr or --set optimizer.clip_norm=5"
        )
    if names := not_finite(algorithm):
        raise TrainingError(
            f"{', '.join(map(repr, names))} of algorithm {name!r} "
            f"{'is' if len(names) == 1 else 'are'} not finite after step {step}; the last finite "
            "checkpoint is kept"
        )
    if scaler.is_enabled() and scaler.get_scale() < SMALLEST_SCALE:
        raise TrainingError(
            "gradients overflow fp16 at every step; the last finite checkpoint is kept; use "
            "--precision bf16 or fp32"
        )


def all_finite(module: nn.Module) -> bool:
    """Return True if all parameters and float buffers are finite; waits for the device once."""
    tensors = [
        tensor.detach()
        for tensor in [*module.parameters(), *module.buffers()]
        if tensor.is_floating_point() and tensor.numel()
    ]
    # Not the Euclidean norm: the sum of squares of finite numbers can overflow.
    largest = norms(tensors, float("inf"))
    return bool(torch.stack([norm.float() for norm in largest]).isfinite().all())


def not_finite(module: nn.Module) -> list[str]:
    """Return names of non-finite parameters and of buffers with a nan; waits for the device once.

    Infinity in a buffer is valid: a running minimum starts there, for example.
    """
    tensors = {
        name: ~tensor.isfinite() if isinstance(tensor, nn.Parameter) else tensor.isnan()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if tensor.is_floating_point() and tensor.layout == torch.strided
    }
    if not tensors:
        return []
    bad = torch.stack([mask.any() for mask in tensors.values()]).tolist()
    return [name for name, is_bad in zip(tensors, bad, strict=True) if is_bad]
