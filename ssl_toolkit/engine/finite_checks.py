"""Check that weights and states are finite, and can be restored, before they are saved."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import nn

from ssl_toolkit.errors import PluginError, TrainingError
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


class RestoreCheck:
    """Checks that a new instance of an algorithm can load its state.

    Args:
        algorithm: algorithm of the run, before the first step and before its state is restored.
        name: name of the algorithm.

    Raises:
        PluginError: a new instance could not load it, in one line that names the class or tensor.
    """

    def __init__(self, algorithm: Algorithm, name: str) -> None:
        self._algorithm = algorithm
        self._name = name
        self._first: dict[str, str] | None = None
        kinds: set[Any] = {*map(type, algorithm.modules())}
        for kind in kinds:
            if (
                kind.get_extra_state is not nn.Module.get_extra_state
                and kind.set_extra_state is nn.Module.set_extra_state
            ):
                raise PluginError(
                    f"{kind.__name__} of algorithm {name!r} implements get_extra_state, but not "
                    "set_extra_state, so its run could not be resumed"
                )
        self()

    def __call__(self) -> None:
        """Refuse a state that can't be loaded.

        Raises:
            PluginError: one line that names the tensor or the type.
        """
        found = {}
        for name, value in self._algorithm.state_dict().items():
            if name.rpartition(".")[2] != "_extra_state":
                found[name] = f"a tensor {tuple(value.shape)}"
            elif foreign := _foreign(value):
                raise PluginError(
                    f"get_extra_state of algorithm {self._name!r} returned a {foreign}, which a "
                    "checkpoint can't contain; return tensors, numbers, text, None, dicts and lists"
                )
        first = self._first = found if self._first is None else self._first
        for name in first | found:
            before, now = (known.get(name, "absent") for known in (first, found))
            if before != now:
                raise PluginError(
                    f"{name!r} of algorithm {self._name!r} was {before} after __init__ and is now "
                    f"{now}, so the run could not be resumed; keep its shape, such as by copy_()"
                )


def _foreign(value: Any) -> str:
    """Return the name of a type in a state that ``weights_only=True`` refuses; empty for none."""
    if isinstance(value, torch.Tensor) or type(value) in _PLAIN:
        return ""
    if type(value) in (dict, OrderedDict, Counter):
        parts = [*value.keys(), *value.values()]
    elif type(value) in (list, tuple, set):
        parts = [*value]
    else:
        return type(value).__name__
    return next(filter(None, map(_foreign, parts)), "")


_PLAIN = frozenset({bool, int, float, complex, str, bytes, bytearray, type(None)})
_PLAIN |= {torch.dtype, torch.device, torch.Size}


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
