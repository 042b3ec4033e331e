"""Estimate how long a run takes, once, after its first steps."""

from __future__ import annotations

import time

import torch

from ssl_toolkit.console import Console
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.runs.predictions import prediction_seconds
from ssl_toolkit.runs.progress import TrainingProgress
from ssl_toolkit.text import brief, roughly

MEASURED = 3
"""Steps before the estimate; the first one is slow and does not count."""

LONG = 30 * 60.0
"""Seconds from which on a run is reported as long."""


class Estimate:
    """Print after a few steps how long the rest will take.

    Nothing is printed between two rows of the progress, which have the time left.

    Args:
        experiment: about to train.
        console: shows the estimate.
        progress: shows the rows of metrics.
        warns: warn of a long run, and name what would make it shorter.
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
        """Note the end of a step."""
        step = self._experiment.trainer.step
        if step == self._first:
            self._start = self._now()
        elif step == self._first + MEASURED - 1 and step < self._experiment.trainer.steps:
            self._show((self._now() - self._start) / (MEASURED - 1))

    def _now(self) -> float:
        if self._experiment.device.type != "cpu":  # it may be behind
            torch.accelerator.synchronize(self._experiment.device)
        return time.perf_counter()

    def _show(self, step_seconds: float) -> None:
        trainer, settings = self._experiment.trainer, self._experiment.config.settings
        steps = trainer.steps - trainer.step
        images = len(self._experiment.test[0])
        if settings.eval_every > MEASURED:  # else the measured steps include an evaluation
            images += len(trainer.validation[0]) * (steps // settings.eval_every)
        left = steps * step_seconds
        if images:
            left += images * prediction_seconds(self._experiment)
        if not self._progress.started:
            self._console.say(
                f"step {trainer.step}/{trainer.steps}: {brief(step_seconds)} per step, about "
                f"{roughly(left)} left"
            )
        if self._warns and left > LONG:
            options = "--minutes M (fits image size and steps to M minutes), fewer --steps"
            options += ", a smaller --image-size"
            pretrained = settings.pretrained or settings.weights is not None
            if pretrained and settings.model.freeze != "backbone":
                options += ", --set model.freeze=backbone"
            time_left = f"{roughly(left)} on {self._experiment.device}"
            self._console.warn(f"this run takes about {time_left}; for a shorter one: {options}")
