"""A run from its configuration to its finished folder; and going on with one that was stopped."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer, RunConfig, load_config, validate
from ssl_toolkit.config.locations import find_config
from ssl_toolkit.data.split_file import save_split
from ssl_toolkit.data.splits import Split
from ssl_toolkit.engine.checkpoints import load_checkpoint, save_checkpoint
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.metrics import convergence_step
from ssl_toolkit.engine.resolve import load_table
from ssl_toolkit.engine.trainer import needed
from ssl_toolkit.errors import TrainingError
from ssl_toolkit.files import write_atomically, write_json, write_text
from ssl_toolkit.models.export import export_model
from ssl_toolkit.results.card import model_card
from ssl_toolkit.results.console import Console
from ssl_toolkit.results.evaluation import Predictions, predict_parts, score_parts
from ssl_toolkit.results.folder import RunFolder, check_classes, check_output, make_folder
from ssl_toolkit.results.interrupts import Interrupts, handled
from ssl_toolkit.results.record import record

OWN_DATA = (
    "trained on the embedded data set {}; for your own pictures: --data FOLDER "
    "(labeled/<class>/, unlabeled/, test/<class>/)"
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    summary: dict[str, Any]
    signal: str = ""
    """The signal that ended it early, if one did."""


def train(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Do what ``ssl-toolkit run`` does.

    Args:
        config: a validated configuration, a tree of keys as in a ``--config`` file, or the path
            of such a file.
        overwrite: whether a run that is in the output folder may be replaced.
        console: where the course is shown; None shows warnings and the results only. The log gets
            everything.

    Returns:
        The folder of the run and its summary.

    Raises:
        UserError: before any training; nothing was written.
        TrainingError: a loss or weight was not finite; the summary says ``failed``.
    """
    if isinstance(config, str | os.PathLike):
        config = load_config([find_config(os.fspath(config))])
    elif not isinstance(config, RunConfig):
        tree = {k: str(v) if isinstance(v, os.PathLike) else v for k, v in config.items()}
        config = validate([Layer("configuration", tree)])
    console = console or Console(quiet=True)
    check_output(config.settings, overwrite)
    experiment = prepare(config, progress=console.reading)
    folder = make_folder(experiment.config.settings, overwrite)
    console.log_to(folder.log)
    write_text(folder.config, yaml.dump(experiment.config.tree()))
    write_json(folder.record, record(experiment))
    save_split(folder.split, experiment.table, experiment.split)
    if experiment.leaks:
        write_json(folder.leaks, experiment.leaks.content(experiment.table))
    folder.write_summary(_summary(experiment, "running"))
    console.say(f"run folder: {folder.path}", important=True)
    _introduce(experiment, console)
    return _finish(experiment, folder, console)


def resume(path: Path, *, data: Path | None = None, console: Console | None = None) -> Outcome:
    """Go on with a run that was stopped, from its last checkpoint to the very same result.

    A finished run is left as it is.

    Args:
        path: folder of the run.
        data: where its pictures are now, if they were moved; the same ones as before.
        console: as for `train`.

    Raises:
        ModelError: the folder is not that of a run, or its checkpoint doesn't fit.
        UserError: its data is not there any more, or not the same.
    """
    console = console or Console(quiet=True)
    folder = RunFolder(path)
    summary = folder.read_summary()
    if summary["status"] == "completed":
        if data is not None:
            check_classes(
                load_table(folder.reopen(data).settings).classes, summary["classes"], path, data
            )
        console.say(f"{path}: finished already; nothing to do", important=True)
        return Outcome(path, summary)
    config = folder.read_config()
    experiment = prepare(folder.reopen(data))
    # The folder keeps the configuration of its start, whatever the data was opened with.
    experiment = replace(experiment, config=config)
    check_classes(experiment.classes, summary["classes"], path, data or config.settings.data)
    step = 0
    if folder.last.exists():
        state = load_checkpoint(folder.last, experiment.device)
        experiment.trainer.load_state_dict(state)
        step = experiment.trainer.step
    folder.cut_back(step)
    console.log_to(folder.log)
    console.say(f"going on after step {step} of {config.settings.steps}", important=True)
    folder.write_summary(_summary(experiment, "running"))
    return _finish(experiment, folder, console)


def _finish(experiment: Experiment, folder: RunFolder, console: Console) -> Outcome:
    """Train what is left, test the best weights once, and write the results."""
    trainer = experiment.trainer
    limit = experiment.config.settings.time_limit
    started = time.monotonic()
    with handled() as interrupts, console.training(needed(trainer.settings.steps)) as course:
        trainer.observers += [folder.append_metrics, course.row]
        trainer.save = lambda: _save(experiment, folder)
        trainer.stop = lambda: _reason(interrupts, limit, started)
        try:
            reason = trainer.fit()
        except TrainingError as error:
            folder.write_summary(_summary(experiment, "failed") | {"reason": str(error)})
            raise
        except KeyboardInterrupt:
            reason = interrupts.signal or "SIGINT"
    if reason:
        summary = _summary(experiment, "interrupted") | {"reason": reason}
        folder.write_summary(summary)
        console.say(
            f"stopped by {reason} after step {trainer.step}; go on with "
            f"`ssl-toolkit resume {folder.path}`",
            important=True,
        )
        return Outcome(folder.path, summary, interrupts.signal)

    if trainer.best is not None:
        trainer.evaluated.load_state_dict(trainer.best.weights)
    predictions = predict_parts(experiment)
    _write_predictions(folder.predictions, predictions, experiment.classes)
    settings = experiment.config.settings
    exported = export_model(
        trainer.evaluated,
        folder.model,
        backbone_name=needed(settings.backbone),
        classes=experiment.classes,
        image_size=needed(settings.image_size),
    )
    results = score_parts(predictions, experiment.classes)
    summary = _summary(experiment, "completed", results)
    write_text(folder.card, model_card(experiment, summary, record(experiment), exported))
    folder.write_summary(summary)
    console.results(summary)
    if settings.data is None and settings.dataset in ("digits", "mnist5k"):
        console.say(OWN_DATA.format(settings.dataset))
    return Outcome(folder.path, summary)


def _introduce(experiment: Experiment, console: Console) -> None:
    settings = experiment.config.settings
    counts = ", ".join(f"{count} {part}" for part, count in _counts(experiment.split).items())
    console.say(
        f"{settings.algo} (profile {settings.profile}), {settings.backbone} at "
        f"{settings.image_size} px, {experiment.device}, seed {settings.seed}"
    )
    console.say(f"{len(experiment.classes)} classes; {counts}")
    for note in experiment.notes:
        console.say(note)
    for warning in experiment.warnings:
        console.warn(warning)


def _save(experiment: Experiment, folder: RunFolder) -> None:
    trainer = experiment.trainer
    settings = experiment.config.settings
    names = {
        "algorithm": settings.algo,
        "backbone": settings.backbone,
        "classes": list(experiment.classes),
        "image_size": settings.image_size,
    }
    if trainer.best is not None and trainer.best.step > trainer.best_saved:
        save_checkpoint(folder.best, {**names, **vars(trainer.best)})
        trainer.best_saved = trainer.best.step
    save_checkpoint(folder.last, {**names, **trainer.state_dict()})


def _reason(interrupts: Interrupts, limit: float | None, started: float) -> str:
    if interrupts.signal:
        return interrupts.signal
    late = limit is not None and time.monotonic() - started >= 60 * limit
    return "the time limit" if late else ""


def _write_predictions(
    path: Path,
    predictions: Predictions,
    classes: tuple[str, ...],
) -> None:
    arrays: dict[str, Any] = {"classes": np.array(classes)}
    for part, (probs, labels) in predictions.items():
        arrays |= {f"{part}_probabilities": probs, f"{part}_labels": labels}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, lambda file: file.write(buffer.getvalue()))


def _counts(split: Split) -> dict[str, int]:
    return {
        "labelled": len(split.labelled),
        "unlabelled": len(split.unlabelled),
        "validation": len(split.validation),
        "test": len(split.test),
    }


def _summary(
    experiment: Experiment, status: str, results: dict[str, dict[str, Any] | None] | None = None
) -> dict[str, Any]:
    settings, trainer = experiment.config.settings, experiment.trainer
    steps = [step for step, _ in trainer.evaluations]
    accuracies = [accuracy for _, accuracy in trainer.evaluations]
    return {
        "status": status,
        "algorithm": settings.algo,
        "backbone": settings.backbone,
        "seed": settings.seed,
        "profile": settings.profile,
        "steps": trainer.step,
        "best_step": None if trainer.best is None else trainer.best.step,
        "convergence_step": convergence_step(steps, accuracies),
        "counts": _counts(experiment.split),
        "classes": list(experiment.classes),
        "validation": None,
        "test": None,
        **(results or {}),
        "fingerprint": experiment.config.fingerprint(),
        "device": str(experiment.device),
        "seconds": trainer.seconds,
        "images_per_second": trainer.images / trainer.seconds if trainer.seconds else None,
    }
