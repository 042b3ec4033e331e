"""Estimate the time of a run once, after its first steps."""

from __future__ import annotations

import time

import torch

from ssl_toolkit.console import Console
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.runs.predictions import prediction_seconds
from ssl_toolkit.runs.progress import TrainingProgress
from ssl_toolkit.text import brief, roughly

STEPS = 3
"""Number of steps before the estimate; the first one is slow and is not counted."""

LONG = 30 * 60.0
"""Remaining seconds above which a run gets a warning."""


class Estimate:
    """Print the time left after a few steps.

    Nothing is printed once there are rows of progress, which include the time left.

    Args:
        experiment: before its first step.
        console: shows the estimate.
        progress: shows the rows of metrics.
        warns: warn if the run is long, and name options that shorten it.
    """

    def __init__(
        self, experiment: Experiment, console: Console, progress: TrainingProgress, *, warns: bool
    ) -> None:
        self._experiment = experiment
        self._console = console
        self._progress = progress
        self._warns = warns
        self._first = experiment.trainer.step + 1
        self._start = 0.0

    def update(self) -> None:
        """Record the end of a step."""
        step = self._experiment.trainer.step
        if step == self._first:
            self._start = self._now()
        elif step == self._first + STEPS - 1 and step < self._experiment.trainer.steps:
            self._show((self._now() - self._start) / (STEPS - 1))

    def _now(self) -> float:
        if self._experiment.device.type != "cpu":  # which computes asynchronously
            torch.accelerator.synchronize(self._experiment.device)
        return time.perf_counter()

    def _show(self, step_seconds: float) -> None:
        trainer, settings = self._experiment.trainer, self._experiment.config.settings
        steps = trainer.steps - trainer.step
        images = len(self._experiment.test[0])
        if settings.eval_every > STEPS:  # else the measured steps include an evaluation
            images += len(trainer.validation[0]) * (steps // settings.eval_every)
        left = steps * step_seconds
        if images:
            left += images * prediction_seconds(self._experiment)
        if not self._progress.has_header:
            self._console.say(
                f"step {trainer.step}/{trainer.steps}: {brief(step_seconds)} per step, about "
                f"{roughly(left)} left"
            )
        if self._warns and left > LONG:
            options = "--minutes M (fits image size and steps to M minutes), fewer --steps"
            options += ", a smaller --image-size"
            pretrained = settings.pretrained or settings.weights is not None
            if pretrained and settings.model.freeze != "backbone" and not settings.lora.rank:
                options += ", --set model.freeze=backbone"
            time_left = f"{roughly(left)} on {self._experiment.device}"
            self._console.warn(f"this run takes about {time_left}; for a shorter one: {options}")
