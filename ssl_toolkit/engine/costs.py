"""Measure the parts of training, and compute how many steps fit into a time."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

SHORT = 10.0
"""Measurements below this many seconds are repeated, because first calls are slow."""

FEW = 4
"""Items of the first measurement."""

ENOUGH = 0.05
"""Seconds from which a measurement is accurate enough."""


@dataclass(frozen=True)
class Costs:
    """Measured seconds of the parts of training."""

    step: float
    evaluation: float
    scan: float
    scan_every: int
    """Steps between two scans, 0 for none."""
    selection: float = 0.0
    """All selections of unlabeled images in a run, under ``drop_strangers``."""

    def of(self, steps: int, eval_every: int) -> float:
        """Return the seconds of a run of this many steps."""
        scans = math.ceil(steps / self.scan_every) if self.scan_every else 0
        evaluating = math.ceil(steps / eval_every) * self.evaluation
        return steps * self.step + evaluating + scans * self.scan + self.selection

    def steps_within(self, seconds: float, eval_every: Callable[[int], int]) -> int:
        """Return the largest number of steps that fit into a time.

        Args:
            seconds: time limit of the run.
            eval_every: returns the evaluation interval of a run from its number of steps.
        """
        most = int(seconds / self.step)
        return bisect_right(
            range(1, most + 1), seconds, key=lambda steps: self.of(steps, eval_every(steps))
        )


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return how long a call takes, including its work on the device."""
    waits = device.type != "cpu"
    if waits:
        torch.accelerator.synchronize(device)
    started = time.perf_counter()
    call()
    if waits:
        torch.accelerator.synchronize(device)
    return time.perf_counter() - started


def seconds_each(call: Callable[[int], object], device: torch.device, most: int) -> float:
    """Return the seconds per item of a call that processes many together.

    Args:
        call: processes a number of items, which is doubled until it takes long enough.
        device: device that the call uses.
        most: maximum number of items of a call.
    """
    count = min(FEW, most)
    call(count)  # the first call of anything is slow
    while (taken := seconds(partial(call, count), device)) < ENOUGH and count < most:
        count = min(2 * count, most)
    return taken / count
