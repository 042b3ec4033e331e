"""Estimate how long a run takes, once, after its first steps."""

from __future__ import annotations

import time

import torch

from ssl_toolkit.console import Console
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.runs.predictions import prediction_seconds

MEASURED = 3
"""Steps after which the estimate is shown; the first one is slow and does not count."""

LONG = 30 * 60.0
"""Seconds of a run that its user should know about at once."""


class Pace:
    """Tells after a few steps how long the rest will take, and what would make it shorter.

    Args:
        experiment: about to train.
        console: shows the estimate.
        warns: whether the user should hear what would make a long run shorter.
    """

    def __init__(self, experiment: Experiment, console: Console, *, warns: bool = True) -> None:
        self._experiment = experiment
        self._console = console
        self._warns = warns
        self._before = experiment.trainer.step
        self._began = 0.0

    def stepped(self) -> None:
        """Note that a step was done."""
        done = self._experiment.trainer.step - self._before
        if done == 1:
            self._began = self._now()
        elif done == MEASURED:
            self._tell((self._now() - self._began) / (done - 1))

    def _now(self) -> float:
        if self._experiment.device.type != "cpu":  # it may be behind
            torch.accelerator.synchronize(self._experiment.device)
        return time.perf_counter()

    def _tell(self, step_seconds: float) -> None:
        trainer = self._experiment.trainer
        steps = trainer.steps - trainer.step
        if not steps:
            return
        images = len(self._experiment.test[0])
        every = trainer.settings.eval_every
        if every > MEASURED:  # else the steps that were measured hold some
            images += len(trainer.validation[0]) * (steps // every)
        left = steps * step_seconds
        if images:
            left += images * prediction_seconds(self._experiment)
        self._console.say(
            f"step {trainer.step}/{trainer.steps}: {brief(step_seconds)} a step, about "
            f"{roughly(left)} left"
        )
        if self._warns and left > LONG:
            self._console.warn(
                f"this run takes about {roughly(left)} on {self._experiment.device}; for a shorter "
                f"one: {', '.join(self._ways_out())}"
            )

    def _ways_out(self) -> list[str]:
        settings = self._experiment.config.settings
        found = ["--minutes M (fits image size and steps to M minutes)", "fewer --steps"]
        found.append("a smaller --image-size")
        started = settings.pretrained or settings.weights is not None
        if started and settings.model.freeze != "backbone":
            found.append("--set model.freeze=backbone")
        return found


def brief(seconds: float) -> str:
    """A short time, such as that of a step: ``9 ms``, ``0.42 s``."""
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms" if seconds > 0.001 else f"{1000 * seconds:.1g} ms"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def roughly(seconds: float) -> str:
    """A time in a unit that says something: ``40 s``, ``7 min``, ``2.5 h``, ``4 days``."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    if hours < 10:
        return f"{hours:.1f} h"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
