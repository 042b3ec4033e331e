"""How long the parts of training take, and how many steps a time allows."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

SHORT = 10.0
"""Seconds up to which what is slow at its first call is measured twice."""

FEW = 4
"""Items that the first measurement of many has."""

ENOUGH = 0.05
"""Seconds that are long enough to be measured well."""


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of training, measured."""

    step: float
    evaluation: float
    scan: float
    scan_every: int
    """Steps between two scans, 0 for none."""

    def of(self, steps: int, eval_every: int) -> float:
        """Seconds of a run of so many steps."""
        scans = math.ceil(steps / self.scan_every) if self.scan_every else 0
        evaluating = math.ceil(steps / eval_every) * self.evaluation
        return steps * self.step + evaluating + scans * self.scan

    def steps_within(self, seconds: float, eval_every: Callable[[int], int]) -> int:
        """The most steps that take no longer.

        Args:
            seconds: that a run may take.
            eval_every: the steps between two evaluations of a run of so many steps.
        """
        most = int(seconds / self.step)
        return bisect_right(
            range(1, most + 1), seconds, key=lambda steps: self.of(steps, eval_every(steps))
        )


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """How long a call takes, with all that it makes a device do."""
    waits = device.type != "cpu"
    if waits:
        torch.accelerator.synchronize(device)
    started = time.perf_counter()
    call()
    if waits:
        torch.accelerator.synchronize(device)
    return time.perf_counter() - started


def seconds_each(call: Callable[[int], object], device: torch.device, most: int) -> float:
    """How long an item takes where many are handled together.

    Args:
        call: handles so many items; called with ever more of them until that takes long enough.
        device: that it uses.
        most: items that a call may have.
    """
    count = min(FEW, most)
    call(count)  # the first call of anything is slow
    while (taken := seconds(partial(call, count), device)) < ENOUGH and count < most:
        count = min(2 * count, most)
    return taken / count
