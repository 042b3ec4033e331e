"""The exponential moving average of a module: the teacher, and what is evaluated."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class EMA:
    """Averages of a module's parameters: shadow = d · shadow + (1 - d) · parameter.

    Starts from a copy of the module, so no bias correction is needed. Low-precision parameters
    are averaged in float32, where the small increments survive. Integer buffers are copied.

    Args:
        module: the module to follow; it is copied, not kept.
        decay: d, the share of the shadow kept at each update, in [0, 1]; 0 copies. 0.999 in
            SimPLE, MixMatch and FixMatch.
        average_buffers: whether floating-point buffers (BatchNorm's statistics) are averaged too;
            copied otherwise, as in the original codes.
        warmup: whether update t (from 0) uses at most d = (1 + t)/(10 + t), so that the average
            leaves the initial weights soon.

    Raises:
        ValueError: decay is outside [0, 1].
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
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if tensor.is_floating_point() and tensor.itemsize < 4:
                tensor.data = tensor.data.float()
        self.decay = decay
        self.average_buffers = average_buffers
        self.warmup = warmup
        self.updates = 0

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the averages towards `module`; call once after each optimizer step."""
        decay = (
            min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        )
        self.updates += 1
        averaged = list(zip(self.module.parameters(), module.parameters(), strict=True))
        copied: list[tuple[Tensor, Tensor]] = []
        for shadow, live in zip(self.module.buffers(), module.buffers(), strict=True):
            average = self.average_buffers and shadow.is_floating_point()
            (averaged if average else copied).append((shadow, live))  # type: ignore[arg-type]
        if averaged:
            shadows, lives = map(list, zip(*averaged, strict=True))
            lives = [live.to(shadow.dtype) for shadow, live in averaged]
            torch._foreach_lerp_(shadows, lives, 1 - decay)
        if copied:
            shadows, lives = map(list, zip(*copied, strict=True))
            torch._foreach_copy_(shadows, lives)

    def state_dict(self) -> dict[str, Any]:
        """The averages and the count of updates."""
        return {"module": self.module.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.module.load_state_dict(state["module"])
        self.updates = int(state["updates"])
