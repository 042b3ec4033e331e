"""The exponential moving average of a module: the teacher, and what is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from ssl_toolkit.torch_workarounds import copy_all_, lerp_all_


class EMA:
    """Averages of a module's parameters: shadow = d · shadow + (1 - d) · parameter.

    Starts from a copy of the module, so no bias correction is needed. Low-precision parameters
    are averaged in float32, where the small increments survive. Integer buffers are copied.

    Args:
        module: The module to follow; it is copied.
        decay: The share d of the shadow kept at each update, in [0, 1]; 0 copies. 0.999 in
            SimPLE, MixMatch and FixMatch.
        average_buffers: Whether floating-point buffers (BatchNorm's statistics) are averaged too;
            copied otherwise, as in the original codes.
        warmup: Whether update t (from 0) uses at most d = (1 + t)/(10 + t), so that the average
            leaves the initial weights soon.

    Raises:
        ValueError: `decay` is outside [0, 1].
    """

    def __init__(
        self,
        module: nn.Module,
        decay: float,
        average_buffers: bool = False,
        *,
        warmup: bool = False,
    ) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must be in [0, 1], got {decay}")
        self.module: nn.Module = copy.deepcopy(module).eval().requires_grad_(False)
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if tensor.is_floating_point() and tensor.itemsize < 4:
                tensor.data = tensor.data.float()
        self.decay = decay
        self.average_buffers = average_buffers
        self.warmup = warmup
        self.updates: int = 0
        self._own = self._live = _Places(self.module)
        self._followed: nn.Module = self.module

    def of(self, module: nn.Module) -> EMA:
        """Return the averages of another module, with the same settings."""
        return EMA(module, self.decay, self.average_buffers, warmup=self.warmup)

    def restart(self, module: nn.Module) -> None:
        """Reset the averages to the current values of `module`."""
        self.module.load_state_dict(module.state_dict())
        self.updates = 0

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the averages toward `module`; call once after each optimizer step."""
        decay = (
            min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        )
        self.updates += 1
        if module is not self._followed:
            self._followed, self._live = module, _Places(module)
        own, live = self._own, self._live
        averages, values = own.parameters(), live.parameters()
        copies, sources = own.buffers(), live.buffers()
        if self.average_buffers:
            floats = [buffer.is_floating_point() for buffer in copies]
            averages += list(compress(copies, floats))
            values += list(compress(sources, floats))
            copies, sources = (
                [buffer for buffer, floating in zip(buffers, floats, strict=True) if not floating]
                for buffers in (copies, sources)
            )
        values = [
            value if value.dtype == average.dtype else value.to(average.dtype)
            for value, average in zip(values, averages, strict=True)
        ]
        if averages:
            lerp_all_(averages, values, 1 - decay)
        if copies:
            copy_all_(copies, sources)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the count of updates."""
        return {"module": self.module.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state` that `state_dict` returned."""
        self.module.load_state_dict(state["module"])
        self.updates = int(state["updates"])


class _Places:
    """Where the tensors of a module are: walking through its submodules costs more than averaging.

    The places are kept, not the tensors: a module may put another buffer where one was.
    """

    def __init__(self, module: nn.Module) -> None:
        submodules = list(module.modules())
        self._parameters = _once([submodule._parameters for submodule in submodules])
        self._buffers = _once([submodule._buffers for submodule in submodules])

    def parameters(self) -> list[Tensor]:
        return [place[name] for place, name in self._parameters]

    def buffers(self) -> list[Tensor]:
        return [place[name] for place, name in self._buffers]


def _once(places: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Every tensor's place; the first one of those that are shared."""
    found: dict[int, tuple[dict[str, Any], str]] = {}
    for place in places:
        for name, tensor in place.items():
            if tensor is not None:
                found.setdefault(id(tensor), (place, name))
    return list(found.values())
