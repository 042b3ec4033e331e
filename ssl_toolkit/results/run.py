"""A run from its configuration to its finished folder; and going on with one that was stopped."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer, RunConfig, validate
from ssl_toolkit.data.split_file import save_split
from ssl_toolkit.data.splits import Split
from ssl_toolkit.engine.checkpoints import load_checkpoint, save_checkpoint
from ssl_toolkit.engine.evaluation import predict
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.metrics import convergence_step, scores
from ssl_toolkit.engine.trainer import needed
from ssl_toolkit.errors import ModelError, TrainingError
from ssl_toolkit.files import write_atomically, write_json, write_text
from ssl_toolkit.models.export import export_model
from ssl_toolkit.results.console import Console
from ssl_toolkit.results.folder import RunFolder, check_output, make_folder
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
    config: RunConfig | Mapping[str, Any],
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Do what ``ssl-toolkit run`` does.

    Args:
        config: a validated configuration, or a tree of keys as in a ``--config`` file.
        overwrite: whether a run that is in the output folder may be replaced.
        console: where the course is shown; None shows nothing but keeps the log.

    Returns:
        The folder of the run and its summary.

    Raises:
        UserError: before any training; nothing was written.
        TrainingError: a loss or weight was not finite; the summary says ``failed``.
    """
    if not isinstance(config, RunConfig):
        config = validate([Layer("configuration", dict(config))])
    console = console or Console(quiet=True)
    check_output(config.settings, overwrite)
    experiment = prepare(config)
    folder = make_folder(experiment.config.settings, overwrite)
    console.log_to(folder.log)
    write_text(folder.config, yaml.dump(experiment.config.tree()))
    write_json(folder.record, record(experiment))
    save_split(folder.split, experiment.table, experiment.split)
    folder.write_summary(_summary(experiment, "running"))
    console.say(f"run folder: {folder.path}", important=True)
    _introduce(experiment, console)
    return _finish(experiment, folder, console)


def resume(path: Path, *, console: Console | None = None) -> Outcome:
    """Go on with a run that was stopped, from its last checkpoint to the very same result.

    A finished run is left as it is.

    Raises:
        ModelError: the folder is not that of a run, or its checkpoint doesn't fit.
        UserError: its data is not there any more, or not the same.
    """
    console = console or Console(quiet=True)
    folder = RunFolder(path)
    summary = folder.read_summary()
    if summary["status"] == "completed":
        console.say(f"{path}: finished already; nothing to do", important=True)
        return Outcome(path, summary)
    config = validate([Layer(str(folder.config), yaml.read(folder.config))])
    experiment = prepare(_as_it_was(config, folder))
    # The folder keeps the configuration of its start, whatever the data was opened with.
    experiment = replace(experiment, config=config)
    _check_same(experiment, summary, path)
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


def load_finished(path: Path) -> Experiment:
    """A finished run with the weights that it reports, on the data that it used.

    Raises:
        UserError: the run is not finished, or its data is not there any more.
    """
    folder = RunFolder(path)
    summary = folder.read_summary()
    if summary["status"] != "completed":
        raise ModelError(
            f"{path}: the run is {summary['status']}; go on with `ssl-toolkit resume {path}`"
        )
    config = validate([Layer(str(folder.config), yaml.read(folder.config))])
    experiment = prepare(_as_it_was(config, folder))
    _check_same(experiment, summary, path)
    state = load_checkpoint(folder.best if folder.best.exists() else folder.last, experiment.device)
    trainer = experiment.trainer
    weights = state["weights"] if "weights" in state else (state["ema"] or {}).get("module")
    trainer.evaluated.load_state_dict(weights or state["model"])
    return experiment


def evaluate(experiment: Experiment) -> dict[str, dict[str, Any] | None]:
    """Scores of the evaluated weights on ``validation`` and ``test``, None for an empty part."""
    return {
        part: scores(probs, labels, experiment.classes) if len(labels) else None
        for part, (probs, labels) in _predictions(experiment).items()
    }


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
    predictions = _predictions(experiment)
    _write_predictions(folder.predictions, predictions, experiment.classes)
    settings = experiment.config.settings
    export_model(
        trainer.evaluated,
        folder.model,
        backbone_name=needed(settings.backbone),
        classes=experiment.classes,
        image_size=needed(settings.image_size),
    )
    results = {
        part: scores(probs, labels, experiment.classes) if len(labels) else None
        for part, (probs, labels) in predictions.items()
    }
    summary = _summary(experiment, "completed", results)
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


def _as_it_was(config: RunConfig, folder: RunFolder) -> RunConfig:
    """The configuration with the run's own split, and without weights that a checkpoint holds."""
    update = {"split": str(folder.split), "pretrained": False, "weights": None}
    return replace(config, settings=config.settings.model_copy(update=update))


def _check_same(experiment: Experiment, summary: dict[str, Any], path: Path) -> None:
    if list(experiment.classes) != summary["classes"]:
        raise ModelError(
            f"{path}: the run has classes {', '.join(summary['classes'])}, "
            f"the data {', '.join(experiment.classes)}"
        )


def _reason(interrupts: Interrupts, limit: float | None, started: float) -> str:
    if interrupts.signal:
        return interrupts.signal
    late = limit is not None and time.monotonic() - started >= 60 * limit
    return "the time limit" if late else ""


def _predictions(
    experiment: Experiment,
) -> dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]:
    trainer = experiment.trainer
    size = needed(trainer.settings.eval_batch_size)
    parts = {"validation": trainer.validation, "test": experiment.test}
    return {
        part: (
            predict(trainer.evaluated, trainer.batches.images.store, rows, size).numpy(),
            labels.cpu().numpy(),
        )
        for part, (rows, labels) in parts.items()
    }


def _write_predictions(
    path: Path,
    predictions: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]],
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
