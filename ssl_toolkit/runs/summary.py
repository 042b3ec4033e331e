"""Summarize a run: its counts, scores and health."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.engine.metrics import convergence_step
from ssl_toolkit.interfaces import FeatureAlgorithm
from ssl_toolkit.runs.health import alarms, is_evaluation

Results = dict[str, dict[str, Any] | None]
"""Scores by part, None for an empty one."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    summary: dict[str, Any]
    signal: str = ""
    """The signal that ended it early, if one did."""


def counts(split: Split) -> dict[str, int]:
    """Images of each part."""
    return {
        "labeled": len(split.labeled),
        "unlabeled": len(split.unlabeled),
        "validation": len(split.validation),
        "test": len(split.test),
    }


def summary_of(
    experiment: Experiment,
    status: str,
    results: Results | None = None,
    rows: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    """What ``summary.json`` says.

    Args:
        experiment: as far as it came.
        status: ``running``, ``completed``, ``interrupted`` or ``failed``.
        results: of `score_parts`, once there are some.
        rows: of metrics, for the alarms.
    """
    settings, trainer = experiment.config.settings, experiment.trainer
    steps = [step for step, _ in trainer.evaluations]
    accuracies = [accuracy for _, accuracy in trainer.evaluations]
    return {
        "status": status,
        "algorithm": settings.algo,
        "backbone": settings.backbone,
        "seed": settings.seed,
        "profile": settings.profile,
        "steps": trainer.saved,
        "best_step": None if trainer.best is None else trainer.best.step,
        "convergence_step": convergence_step(steps, accuracies),
        "counts": counts(experiment.split),
        "classes": list(experiment.classes),
        "validation": None,
        "test": None,
        **(results or {}),
        "probe": None,
        "fitted": isinstance(trainer.algorithm, FeatureAlgorithm),
        "health": _health(experiment, rows),
        "fingerprint": experiment.config.fingerprint(),
        "device": str(experiment.device),
        "seconds": trainer.seconds,
        "images_per_second": trainer.images / trainer.seconds if trainer.seconds else None,
    }


def _health(experiment: Experiment, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Alarms, labels by class, and the pseudo labels used between the last two evaluations."""
    labels = experiment.table.labels[experiment.split.labeled]
    counts = np.bincount(labels, minlength=len(experiment.classes)).tolist()
    evaluations = [row for row in rows if is_evaluation(row)]
    health: dict[str, Any] = {
        "alarms": alarms(evaluations, steps=experiment.config.settings.steps),
        "labeled": dict(zip(experiment.classes, counts, strict=True)),
    }
    if any(experiment.trainer.pseudo_labels):
        pseudo_labels = zip(experiment.classes, experiment.trainer.pseudo_labels, strict=True)
        health["pseudo_labels"] = dict(pseudo_labels)
    return health
