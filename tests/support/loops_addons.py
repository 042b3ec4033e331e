"""Add-ons as plain loops, around those of an algorithm."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from plain_losses import Loop, Losses
from torch import Tensor

from ssl_toolkit import Batch

SHARES = (5 / 8, 1 / 8, 1 / 8, 1 / 8)


class Shifted:
    """A network whose logit of class c is larger by tau · log(share of c)."""

    def __init__(self, net: Any, tau: float) -> None:
        self.net, self.tau = net, tau

    def __call__(self, images: Tensor) -> Any:
        features, logits = self.net(images)
        rows = [
            [row[c] + self.tau * math.log(SHARES[c]) for c in range(len(row))] for row in logits
        ]
        return SimpleNamespace(features=features, logits=torch.stack([*map(torch.stack, rows)]))


def adjusted(loop: type[Loop]) -> type[Loop]:
    """Return the loop of an algorithm with logit adjustment: both networks are shifted."""

    class Adjusted(loop):  # type: ignore[valid-type, misc]
        def __call__(self, run: Any, batch: Batch) -> Losses:
            tau = self.options.logit_adjustment.tau
            shifted = {name: Shifted(getattr(run, name), tau) for name in ("net", "teacher")}
            return super().__call__(SimpleNamespace(**vars(run) | shifted), batch)

        def state(self) -> dict[str, Any]:
            return {**super().state(), "addon.shares": SHARES}

    return Adjusted
