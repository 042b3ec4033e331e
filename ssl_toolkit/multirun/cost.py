"""Measure what training a row costs on this device, with random images in place of its data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ssl_toolkit.config.loading import ResolvedConfig
from ssl_toolkit.config.settings import FOLLOW_STEPS, NOT_COMPARED, flatten, keys_behind
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.devices import process_device
from ssl_toolkit.errors import UserError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.runs.speeds import step_seconds
from ssl_toolkit.text import brief, roughly

SMALLEST = 2
"""Labeled images of the first batch that is measured."""
ENOUGH = 0.3
"""Seconds of a step from which a larger batch takes proportionally longer."""
_SAME_COST = {
    *(*NOT_COMPARED, *FOLLOW_STEPS, *keys_behind("split")),
    *("recipe", "scale", "pretrained", "weights"),
}
"""Settings that don't change the time of a step, beside numbers that are not counts."""


@dataclass(frozen=True)
class Cost:
    """The time of training a row once."""

    step: float
    """Seconds of a step."""
    steps: int
    measured: int
    """Labeled images of the batch that was measured."""
    batch_size: int
    """Labeled images of a batch of the row."""
    device: str

    def describe(self, seeds: int) -> str:
        """Return the time of one run and of all in one line."""
        total = self.step * self.steps
        text = f"{roughly(total)} on {self.device} ({self.steps:,} steps of {brief(self.step)}"
        if self.measured < self.batch_size:
            text += f", extrapolated from a batch of {self.measured} to {self.batch_size}"
        return f"{text}), {roughly(total * seeds)} for {seeds} seeds" if seeds > 1 else f"{text})"


class StepTimes:
    """Measures steps; rows whose steps do the same are measured once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, int]] = {}

    def cost(self, config: ResolvedConfig, classes: int) -> Cost | None:
        """Return the cost of a run; None for a head that is fitted without steps.

        The batch is doubled until a step takes `ENOUGH` seconds: the time of a longer one is
        proportional to its batch, and on slow devices the whole batch would take minutes.

        Args:
            config: Resolved configuration of the run.
            classes: Number of classes of its data, or an estimate.

        Raises:
            UserError: The run can't be prepared on this device.
        """
        settings = config.settings
        device = process_device(settings.device, 0, 1)
        key = _kind(config)
        if key not in self._known:
            self._known[key] = _measure(config, classes)
        seconds, batch = self._known[key]
        if not batch:
            return None
        step = seconds * settings.batch_size / batch
        return Cost(step, settings.steps, batch, settings.batch_size, device.type)


def _kind(config: ResolvedConfig) -> str:
    """Return the settings that the time of a step depends on."""
    parts: dict[str, Any] = {
        key: value
        for key, value in flatten(config.tree())
        if key not in _SAME_COST and not isinstance(value, float)
    }
    return repr(parts)


def _measure(config: ResolvedConfig, classes: int) -> tuple[float, int]:
    """Return the seconds of a step and its batch size; zeros for a head without steps."""
    images = config.settings.eval_batch_size
    rows = np.arange(max(classes, images), dtype=np.int64)
    split = Split(rows, rows[:images], rows[:0], rows[:0])
    table = ImageTable(
        classes=tuple(map(str, range(classes))),
        keys=(),
        labels=np.empty(0, np.int64),
        splits=np.empty(0, np.str_),
    )
    whole = config.settings.batch_size
    batch, best = min(SMALLEST, whole), (math.inf, 1)
    while True:
        try:
            seconds = step_seconds(config.with_settings(batch_size=batch), table, split)
        except (UserError, torch.OutOfMemoryError):
            if math.isinf(best[0]):
                raise
            return best
        if seconds is None:
            return 0.0, 0
        # A larger batch takes less time for each image, unless another process interferes.
        best = min(best, (seconds, batch), key=lambda pair: pair[0] / pair[1])
        if seconds >= ENOUGH or batch == whole:
            return best
        batch = min(2 * batch, whole)
