"""Train the remaining steps of a run, test it and write its results."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ssl_toolkit.config.images import stored_size
from ssl_toolkit.console import Console
from ssl_toolkit.data.load import named_dataset
from ssl_toolkit.engine.checkpoints import kept_checkpoints, save_checkpoint
from ssl_toolkit.engine.compiling import compile_forwards
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.engine.logged_metrics import (
    LABELED_ACCURACY,
    LABELED_MAP,
    PSEUDO_LABEL_ACCURACY,
    VALIDATION_ACCURACY,
    VALIDATION_MAP,
)
from ssl_toolkit.engine.plugin_faults import plugin_faults
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.transfer import ProbeResult
from ssl_toolkit.errors import DataError, TrainingError, UserError
from ssl_toolkit.files import sync, write_text
from ssl_toolkit.interfaces import RunInfo
from ssl_toolkit.interrupts import Interrupts
from ssl_toolkit.loggers.dispatch import Log
from ssl_toolkit.models.adapters import merge_adapters
from ssl_toolkit.models.export import export_model
from ssl_toolkit.models.factory import describe
from ssl_toolkit.runs.estimate import Estimate
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import append_row, metric_rows, write_table
from ssl_toolkit.runs.model_card import model_card
from ssl_toolkit.runs.multilabel import MultiLabelResults
from ssl_toolkit.runs.pool_shares import (
    expected_strangers,
    known_scores,
    pool_outputs,
    pool_shares,
)
from ssl_toolkit.runs.predictions import (
    Predictions,
    predict_parts,
    prediction_seconds,
    score_parts,
    score_several,
    thresholds_of,
    worst_mistakes,
    write_predictions,
)
from ssl_toolkit.runs.probe_report import compare_with_probe, probe_line, verdict
from ssl_toolkit.runs.progress import TrainingProgress, show_results
from ssl_toolkit.runs.summary import RunResult, RunSummary, Status, summary_of
from ssl_toolkit.text import display_path, roughly

EXAMPLE_DATA = (
    "trained on the embedded data set {}; for your own images: --data FOLDER "
    "(labeled/<class>/, unlabeled/, test/<class>/)"
)

MEMORY = (
    "CUDA out of memory at step {}; restart with a smaller --batch-size (--set "
    "optimizer.accumulation_steps=2 keeps the number of images per step), fewer or smaller views "
    "(strong_views, unlabeled_ratio, --image-size) or --precision bf16; if another process was "
    "using the GPU, {}"
)


GRACE = 10.0
"""Maximum seconds of the test after SIGTERM, since the sender may kill the process soon."""

COLLAPSE = "a collapse of training (--on-collapse stop)"
"""Reason to stop; the alarms describe it."""


def finish(
    experiment: Experiment, folder: RunFolder, console: Console, interrupts: Interrupts
) -> RunResult:
    """Train the remaining steps, test the best weights once, and write the results.

    Args:
        experiment: new, or in the state of its last checkpoint.
        folder: of the run, locked by this process.
        console: shows the progress.
        interrupts: end the run early, with everything saved.

    Raises:
        TrainingError: a number was not finite, or a file could not be written; the summary says
            ``failed``, and the last checkpoint remains.
    """
    run = _Run(experiment, folder, console, interrupts)
    completed = False
    try:
        with run.log() as log:
            result = run.finish(log)
        completed = result.status == "completed"
        return result
    finally:
        if not completed:
            with contextlib.suppress(OSError):  # as in `_Run.end`
                write_table(folder.metrics, folder.table)


def predict_best(experiment: Experiment, *, alone: bool = False) -> Predictions:
    """Load the best weights into the averaged model, and return their predictions.

    Args:
        experiment: the run.
        alone: predict in this process only, without the others of the run.
    """
    trainer = experiment.trainer
    if trainer.best is not None:
        trainer.predictor.load(trainer.best.weights, trainer.best.algorithm_state)
    merge_adapters(trainer.predictor)  # what is tested is what is saved
    return predict_parts(experiment, alone=alone)


@dataclass(frozen=True)
class _Run:
    experiment: Experiment
    folder: RunFolder
    console: Console
    interrupts: Interrupts

    def log(self) -> Log:
        """Return the loggers of the run."""
        settings = self.experiment.config.settings
        info = RunInfo(
            folder=self.folder.path,
            name=self.folder.path.resolve().name,
            algorithm=settings.algo,
            seed=settings.seed,
            config=self.experiment.config.tree(),
            step=self.experiment.trainer.step,
            group=settings.group,
        )
        summary = lambda: self.folder.read_summary().tree()  # noqa: E731
        try:
            return Log(info, settings.loggers, self.console, summary)
        except UserError as error:
            self.end(summary_of(self.experiment, "failed", reason=str(error)))
            raise

    def finish(self, log: Log) -> RunResult:
        """Train, test and write the results, even if training ends early."""
        trainer, folder = self.experiment.trainer, self.folder
        resume = f"resume with `ssl-toolkit resume {display_path(folder.path)}`"
        try:
            try:
                settings = self.experiment.config.settings
                with plugin_faults(settings, TrainingError), trainer.processes.collective_section():
                    reason = self.train(log)
                    predictions = None if reason else predict_best(self.experiment)
                if predictions is not None:
                    return self.conclude(predictions)
                summary = self.test_early()
            except KeyboardInterrupt:
                reason = self.interrupts.signal or "SIGINT"
                summary = self.summary("interrupted")
        except (TrainingError, DataError) as error:  # streamed images are read during training
            self.end(self.summary("failed", reason=str(error)))
            raise
        except torch.OutOfMemoryError as error:
            raise self.failure(MEMORY.format(trainer.step + 1, resume)) from error
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            message = f"{name}{error.strerror or error}; fix that and {resume}"
            raise self.failure(message) from error
        summary = summary.model_copy(update={"reason": reason})
        self.end(summary)
        if (summary.validation or summary.test or summary.multilabel) is not None:
            self.show(summary)
        message = f"stopped by {reason} after step {trainer.saved}; {resume}"
        self.console.say(message, important=True)
        return RunResult(folder=folder.path, summary=summary, signal=self.interrupts.signal)

    def train(self, log: Log) -> str:
        """Train, and return the reason to stop before the last step, or an empty string."""
        trainer, folder, console = self.experiment.trainer, self.folder, self.console
        settings = self.experiment.config.settings
        limit, start = settings.time_limit, time.monotonic()
        if settings.compile and (message := compile_forwards(trainer)):
            console.warn(message)
        rows = metric_rows(folder.metrics)
        progress = TrainingProgress(console, trainer.steps, rows, _expected_metrics(trainer))
        planned = limit or folder.read_record().minutes or settings.group
        warns = not planned and not trainer.step
        estimate = Estimate(self.experiment, console, progress, warns=warns)

        def after_step(seconds: float) -> None:
            self.interrupts.took(seconds)
            estimate.update()

        def reason() -> str:
            if text := _stop_reason(self.interrupts, limit, start):
                return text
            return COLLAPSE if settings.on_collapse == "stop" and progress.collapsed else ""

        batches = trainer.steps * settings.optimizer.accumulation_steps
        with self.interrupts.patient(), progress, trainer.batches.reading_ahead(batches):
            trainer.announce = self.announce
            trainer.observers += [partial(append_row, folder.metrics), progress.row, log.row]
            trainer.save = self.save
            trainer.stepped = after_step
            trainer.stop = reason
            if not kept_checkpoints(folder.last):
                trainer.save()  # reports a full disk now, and makes the run resumable
            return trainer.fit()

    def announce(self, probe: ProbeResult) -> None:
        """Print the score of the linear probe."""
        labels = self.experiment.trainer.validation[1].cpu()
        hits = probe.validation.argmax(dim=-1) == labels
        accuracy = hits.double().mean().item() if len(labels) else None
        self.console.say(probe_line(probe, accuracy), important=True)

    def save(self) -> None:
        """Write a checkpoint."""
        self.interrupts.stop_waiting()
        trainer, settings = self.experiment.trainer, self.experiment.config.settings
        description = {
            **describe(trainer.classifier, settings.backbone),
            "algorithm": settings.algo,
            "classes": list(self.experiment.classes),
            "image_size": stored_size(settings.image_size),
            "bits": settings.pixels.bits,
            "fit": settings.fit,
            "config": self.experiment.config.tree(),
            "predict": trainer.predictor.description(),
        }
        sync(self.folder.metrics)  # its rows must not be fewer than the checkpoint's steps
        if trainer.best is not None and trainer.best.step > trainer.best_saved:
            save_checkpoint(self.folder.best, {**description, **vars(trainer.best)})
            trainer.best_saved = trainer.best.step
        state = {**description, **trainer.state_dict()}
        save_checkpoint(self.folder.last, state, keep=settings.keep_checkpoints)

    def test_early(self) -> RunSummary:
        """Return the summary of a run that ended early, with the scores of its best weights."""
        if self.interrupts.signal == "SIGTERM":
            count = len(self.experiment.trainer.validation[0]) + len(self.experiment.test[0])
            seconds = count * prediction_seconds(self.experiment) if count else 0.0
            if seconds > GRACE:
                self.console.say(
                    f"not tested after SIGTERM: the test takes about {roughly(seconds)}"
                )
                return self.summary("interrupted")
        elif self.interrupts.signal:
            self.console.say("testing the best weights so far; press Ctrl-C again to skip that")
        return self.score("interrupted", predict_best(self.experiment, alone=True))

    def conclude(self, predictions: Predictions) -> RunResult:
        """Write the results of a completed run."""
        folder, trainer = self.folder, self.experiment.trainer
        settings = self.experiment.config.settings
        summary = self.score("completed", predictions)
        pool = pool_outputs(self.experiment, predictions)
        if (shares := pool_shares(self.experiment, predictions, pool)) is not None:
            shares.write(folder.prior)
            summary = summary.model_copy(update={"class_shares": shares})
        known = known_scores(self.experiment, pool)
        expected = expected_strangers(known, pool)
        summary = summary.model_copy(update={"expected_strangers": expected})
        exported = export_model(
            trainer.predictor,
            folder.model,
            backbone_name=settings.backbone,
            classes=self.experiment.classes,
            image_size=settings.image_size,
            bits=settings.pixels.bits,
            fit=settings.fit,
            thresholds=thresholds_of(predictions),
            known_scores=known.tree() if known else None,
        )
        write_table(folder.metrics, folder.table)
        card = model_card(self.experiment, summary, folder.read_record(), exported)
        write_text(folder.card, card)
        summary.write(folder.summary)
        if message := trainer.batches.images.pool.warning:
            self.console.warn(message)
        self.show(summary)
        if expected is not None and settings.drop_strangers == "no" and expected.warning:
            self.console.warn(expected.warning)
        if settings.data is None and named_dataset(settings.dataset).is_example:
            self.console.say(EXAMPLE_DATA.format(settings.dataset))
        return RunResult(folder=folder.path, summary=summary)

    def score(self, status: Status, predictions: Predictions) -> RunSummary:
        """Write the predictions, and return the summary with their scores."""
        classes, probe = self.experiment.classes, self.experiment.trainer.probe
        mistakes = worst_mistakes(self.experiment, predictions)
        write_predictions(self.folder.predictions, predictions, classes, mistakes)
        thresholds = thresholds_of(predictions)
        if thresholds is not None:
            several = score_several(predictions, classes, thresholds)
            return self.summary(status, multilabel=MultiLabelResults(**several))
        summary = self.summary(status, **score_parts(predictions, classes))
        if probe is None:
            return summary
        return summary.model_copy(update={"probe": compare_with_probe(probe, predictions)})

    def summary(self, status: Status, **update: Any) -> RunSummary:
        """Return the summary with the metrics so far."""
        rows = metric_rows(self.folder.metrics)
        return summary_of(self.experiment, status, rows).model_copy(update=update)

    def show(self, summary: RunSummary) -> None:
        """Print the final table."""
        show_results(self.console, summary.tree())
        if summary.probe is not None and (message := verdict(summary.probe)):
            self.console.say(message, important=True)

    def failure(self, message: str) -> TrainingError:
        """Write the summary of a failed run, and return the error."""
        self.end(self.summary("failed", reason=message))
        return TrainingError(message)

    def end(self, summary: RunSummary) -> None:
        """Write the final summary; a full disk, possibly the cause, must not hide the reason."""
        with contextlib.suppress(OSError):
            summary.write(self.folder.summary)


def _stop_reason(interrupts: Interrupts, limit: float | None, start: float) -> str:
    if interrupts.signal:
        return interrupts.signal
    late = limit is not None and time.monotonic() - start >= 60 * limit
    return "the time limit" if late else ""


def _expected_metrics(trainer: Trainer) -> set[str]:
    """Return metrics that the first row may lack, though later rows contain them."""
    validated = len(trainer.validation[0]) > 0
    accuracy = VALIDATION_ACCURACY if validated else LABELED_ACCURACY
    if trainer.classifier.task == "multilabel":
        accuracy = VALIDATION_MAP if validated else LABELED_MAP
    hidden = bool((trainer.batches.images.hidden >= 0).any())
    return {accuracy.name} | ({PSEUDO_LABEL_ACCURACY.name} if hidden else set())
