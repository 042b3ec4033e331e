"""Training what is left of a run, and its results: everything between the folder and the end."""

from __future__ import annotations

import contextlib
import time
from functools import partial

import torch

from ssl_toolkit.console import Console
from ssl_toolkit.data.load import named_dataset
from ssl_toolkit.engine.checkpoints import kept_checkpoints, save_checkpoint
from ssl_toolkit.engine.compiling import compile_forwards
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.engine.logged_metrics import (
    LABELED_ACCURACY,
    PSEUDO_LABEL_ACCURACY,
    VALIDATION_ACCURACY,
)
from ssl_toolkit.engine.plugin_faults import plugin_faults
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.transfer import ProbeResult
from ssl_toolkit.errors import DataError, TrainingError, UserError
from ssl_toolkit.files import sync, write_text
from ssl_toolkit.interfaces import RunInfo
from ssl_toolkit.interrupts import Interrupts
from ssl_toolkit.loggers.dispatch import Log
from ssl_toolkit.models.export import export_model
from ssl_toolkit.runs.estimate import Estimate
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import append_row, metric_rows, write_table
from ssl_toolkit.runs.model_card import model_card
from ssl_toolkit.runs.predictions import (
    Predictions,
    predict_parts,
    prediction_seconds,
    score_parts,
    worst_mistakes,
    write_predictions,
)
from ssl_toolkit.runs.probe_report import compare_with_probe, probe_line, verdict
from ssl_toolkit.runs.progress import TrainingProgress, show_results
from ssl_toolkit.runs.summary import Results, RunResult, RunSummary, Status, summary_of
from ssl_toolkit.text import display_path, roughly

OWN_DATA = (
    "trained on the embedded data set {}; for your own images: --data FOLDER "
    "(labeled/<class>/, unlabeled/, test/<class>/)"
)

MEMORY = (
    "CUDA out of memory at step {}; restart with a smaller --batch-size (--set "
    "optimizer.accumulation_steps=2 keeps the number of images per step), fewer or smaller views "
    "(strong_views, unlabeled_ratio, --image-size) or --precision bf16; if another process was "
    "using the GPU, resume with `ssl-toolkit resume {}`"
)


GRACE = 10.0
"""Seconds that the test of a run that SIGTERM has stopped may take: what sends it may kill soon."""

COLLAPSE = "a collapse of training (--on-collapse stop)"
"""The reason to stop; what was seen stands among the alarms."""


def finish(
    experiment: Experiment, folder: RunFolder, console: Console, interrupts: Interrupts
) -> RunResult:
    """Train what is left, test the best weights once, and write the results.

    Args:
        experiment: fresh, or as its last checkpoint left it.
        folder: of the run; this process holds its lock.
        console: where the course is shown.
        interrupts: end the run early, with everything saved.

    Raises:
        TrainingError: something was not finite, or a file could not be written; the summary says
            ``failed``, and the last checkpoint stands.
    """
    completed = False
    try:
        with _log(experiment, folder, console) as log:
            outcome = _finish(experiment, folder, console, interrupts, log)
        completed = outcome.status == "completed"
        return outcome
    finally:
        if not completed:
            with contextlib.suppress(OSError):  # as in `_end`
                write_table(folder.metrics, folder.table)


def _log(experiment: Experiment, folder: RunFolder, console: Console) -> Log:
    settings = experiment.config.settings
    run = RunInfo(
        folder=folder.path,
        name=folder.path.resolve().name,
        algorithm=settings.algo,
        seed=settings.seed,
        config=experiment.config.tree(),
        step=experiment.trainer.step,
        group=settings.group,
    )
    try:
        return Log(run, settings.loggers, console, lambda: folder.read_summary().tree())
    except UserError as error:
        _end(folder, summary_of(experiment, "failed", reason=str(error)))
        raise


def _finish(
    experiment: Experiment, folder: RunFolder, console: Console, interrupts: Interrupts, log: Log
) -> RunResult:
    trainer = experiment.trainer
    try:
        try:
            settings = experiment.config.settings
            with plugin_faults(settings, TrainingError), trainer.processes.collective_section():
                reason = _train(experiment, folder, console, interrupts, log)
                predictions = None if reason else predict_best(experiment)
            if predictions is not None:
                return _conclude(experiment, folder, console, predictions)
            summary = _so_far(experiment, folder, console, interrupts)
        except KeyboardInterrupt:
            reason = interrupts.signal or "SIGINT"
            summary = _summary(experiment, folder, "interrupted")
    except (TrainingError, DataError) as error:  # streamed images are read only now
        _end(folder, _summary(experiment, folder, "failed", reason=str(error)))
        raise
    except torch.OutOfMemoryError as error:
        message = MEMORY.format(trainer.step + 1, display_path(folder.path))
        _end(folder, _summary(experiment, folder, "failed", reason=message))
        raise TrainingError(message) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        message = (
            f"{place}{error.strerror or error}; fix that and resume with "
            f"`ssl-toolkit resume {display_path(folder.path)}`"
        )
        _end(folder, _summary(experiment, folder, "failed", reason=message))
        raise TrainingError(message) from error
    summary = summary.model_copy(update={"reason": reason})
    _end(folder, summary)
    if summary.validation is not None or summary.test is not None:
        _show(console, summary)
    console.say(
        f"stopped by {reason} after step {trainer.saved}; resume with "
        f"`ssl-toolkit resume {folder.path}`",
        important=True,
    )
    return RunResult(folder=folder.path, summary=summary, signal=interrupts.signal)


def _so_far(
    experiment: Experiment, folder: RunFolder, console: Console, interrupts: Interrupts
) -> RunSummary:
    """The summary of a run that was stopped after a step, with the scores of its best weights."""
    if interrupts.signal == "SIGTERM":
        count = len(experiment.trainer.validation[0]) + len(experiment.test[0])
        expected = count * prediction_seconds(experiment) if count else 0.0
        if expected > GRACE:
            console.say(f"not tested: that takes about {roughly(expected)}, too long for SIGTERM")
            return _summary(experiment, folder, "interrupted")
    elif interrupts.signal:
        console.say("testing the best weights so far; press Ctrl-C again to skip that")
    return _scored(experiment, folder, "interrupted", predict_best(experiment, alone=True))


def _train(
    experiment: Experiment, folder: RunFolder, console: Console, interrupts: Interrupts, log: Log
) -> str:
    """The reason to stop before the last step, empty for none."""
    trainer = experiment.trainer
    limit = experiment.config.settings.time_limit
    started = time.monotonic()
    if trainer.settings.compile and (message := compile_forwards(trainer)):
        console.warn(message)
    course = TrainingProgress(
        console, trainer.steps, metric_rows(folder.metrics), _expected_metrics(trainer)
    )
    stops = trainer.settings.on_collapse == "stop"
    planned = limit or folder.read_record().minutes or trainer.settings.group
    warns = not planned and not trainer.step
    estimate = Estimate(experiment, console, course, warns=warns)

    def stepped(seconds: float) -> None:
        interrupts.took(seconds)
        estimate.update()

    with interrupts.patient(), course:
        trainer.announce = lambda probe: console.say(_probe_line(experiment, probe), important=True)
        trainer.observers += [partial(append_row, folder.metrics), course.row, log.row]
        trainer.save = lambda: _save(experiment, folder, interrupts)
        trainer.stepped = stepped
        trainer.stop = lambda: (
            _reason(interrupts, limit, started) or (COLLAPSE if stops and course.collapsed else "")
        )
        if not kept_checkpoints(folder.last):
            trainer.save()  # finds a full disk now, and from now on there is something to resume
        return trainer.fit()


def _expected_metrics(trainer: Trainer) -> set[str]:
    """Return the metrics that some rows of the run have, though its first may lack them."""
    accuracy = VALIDATION_ACCURACY if len(trainer.validation[0]) else LABELED_ACCURACY
    hidden = bool((trainer.batches.images.hidden >= 0).any())
    return {accuracy.name} | ({PSEUDO_LABEL_ACCURACY.name} if hidden else set())


def _probe_line(experiment: Experiment, probe: ProbeResult) -> str:
    labels = experiment.trainer.validation[1].cpu()
    hits = probe.validation.argmax(dim=-1) == labels
    return probe_line(probe, hits.double().mean().item() if len(labels) else None)


def predict_best(experiment: Experiment, *, alone: bool = False) -> Predictions:
    """Predictions of the best weights, which the averaged model has from then on.

    Args:
        experiment: the run.
        alone: whether this process does it without the others of the run.
    """
    trainer = experiment.trainer
    if trainer.best is not None:
        trainer.eval_model.load_state_dict(trainer.best.weights)
    return predict_parts(experiment, alone=alone)


def _conclude(
    experiment: Experiment, folder: RunFolder, console: Console, predictions: Predictions
) -> RunResult:
    trainer = experiment.trainer
    settings = experiment.config.settings
    summary = _scored(experiment, folder, "completed", predictions)
    exported = export_model(
        trainer.eval_model,
        folder.model,
        backbone_name=settings.backbone,
        classes=experiment.classes,
        image_size=settings.image_size,
        fit=settings.fit,
    )
    write_table(folder.metrics, folder.table)
    write_text(folder.card, model_card(experiment, summary, folder.read_record(), exported))
    summary.write(folder.summary)
    if message := trainer.batches.images.pool.warning:
        console.warn(message)
    _show(console, summary)
    if settings.data is None and named_dataset(settings.dataset).is_example:
        console.say(OWN_DATA.format(settings.dataset))
    return RunResult(folder=folder.path, summary=summary)


def _scored(
    experiment: Experiment, folder: RunFolder, status: Status, predictions: Predictions
) -> RunSummary:
    """Write the predictions; the summary with their scores."""
    trainer = experiment.trainer
    mistakes = worst_mistakes(experiment, predictions)
    write_predictions(folder.predictions, predictions, experiment.classes, mistakes)
    results = score_parts(predictions, experiment.classes)
    summary = _summary(experiment, folder, status, results)
    if trainer.probe is None:
        return summary
    return summary.model_copy(update={"probe": compare_with_probe(trainer.probe, predictions)})


def _show(console: Console, summary: RunSummary) -> None:
    show_results(console, summary.tree())
    if summary.probe is not None and (text := verdict(summary.probe)):
        console.say(text, important=True)


def _summary(
    experiment: Experiment,
    folder: RunFolder,
    status: Status,
    results: Results | None = None,
    reason: str | None = None,
) -> RunSummary:
    return summary_of(experiment, status, results, metric_rows(folder.metrics), reason)


def _end(folder: RunFolder, summary: RunSummary) -> None:
    """Write how a run ended; a full disk, which may be why, must not hide the reason."""
    with contextlib.suppress(OSError):
        summary.write(folder.summary)


def _save(experiment: Experiment, folder: RunFolder, interrupts: Interrupts) -> None:
    interrupts.stop_waiting()
    trainer = experiment.trainer
    settings = experiment.config.settings
    names = {
        "algorithm": settings.algo,
        "backbone": settings.backbone,
        "classes": list(experiment.classes),
        "image_size": settings.image_size,
        "fit": settings.fit,
        "config": experiment.config.tree(),
    }
    sync(folder.metrics)  # its rows must not be fewer than the checkpoint's steps
    if trainer.best is not None and trainer.best.step > trainer.best_saved:
        save_checkpoint(folder.best, {**names, **vars(trainer.best)})
        trainer.best_saved = trainer.best.step
    save_checkpoint(folder.last, {**names, **trainer.state_dict()}, keep=settings.keep_checkpoints)


def _reason(interrupts: Interrupts, limit: float | None, started: float) -> str:
    if interrupts.signal:
        return interrupts.signal
    late = limit is not None and time.monotonic() - started >= 60 * limit
    return "the time limit" if late else ""
