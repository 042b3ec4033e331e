"""Trials of the candidates of ``--algo auto``: cross-validation, and short trainings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_toolkit import registry
from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.transfer import training_features
from ssl_toolkit.interfaces import TrainingFeatures
from ssl_toolkit.runs.record import AutoTrial, Candidate

Folds = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Indices of the labels to train and to test on."""

HELD_OUT, VALIDATION = "held-out labels", "validation images"
LEVEL = 0.05
"""Significance level at which another candidate replaces the best so far."""
FINE_TUNING_FOLDS = 3
"""Maximum number of folds for a fine-tuned candidate; each costs as much as a run."""
TRIAL_STEPS, TRIAL_SECONDS = 5, 10.0
"""Steps, or seconds, from which the training time of a fine-tuned candidate is extrapolated."""


@dataclass(frozen=True)
class Trial:
    """The result of cross-validating a candidate."""

    candidate: Candidate
    tested: NDArray[np.bool_]
    """(n,) True for held-out images."""
    hits: NDArray[np.bool_]
    """(n,) True for those that a model trained without their labels classifies correctly."""
    seconds: float
    images: str = HELD_OUT
    """Kind of the test images."""

    @property
    def name(self) -> str:
        """Name of the candidate."""
        return self.candidate.name

    def accuracy(self, where: NDArray[np.bool_] | None = None) -> float:
        """Return the accuracy on the held-out images, or on some of them."""
        return float(self.hits[self.tested if where is None else where].mean())

    def p_value(self, other: Trial) -> float:
        """Return the `sign_test` against another candidate on the common held-out images."""
        both = self.tested & other.tested
        return sign_test(self.hits[both], other.hits[both])

    def leads(self, other: Trial) -> bool:
        """Return True if it is more accurate on the common held-out images."""
        both = self.tested & other.tested
        return bool(self.hits[both].sum() > other.hits[both].sum())

    def record(self) -> AutoTrial:
        """Return the trial as a part of ``record.json``."""
        return AutoTrial(
            **self.candidate.model_dump(),
            accuracy=self.accuracy(),
            images=self.images,
            count=int(self.tested.sum()),
            seconds=self.seconds,
        )


def sign_test(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """Return the one-sided p-value of an exact sign test."""
    wins, losses = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    n = wins + losses
    return float(sum(comb(n, k) for k in range(wins, n + 1)) / 2**n)


def cpu_seconds() -> float:
    """Return the CPU time of this process per thread, which other load does not affect."""
    return time.process_time() / torch.get_num_threads()


def feature_trial(
    config: RunConfig, candidate: Candidate, experiment: Experiment, folds: Folds
) -> Trial:
    """Cross-validate a head on the features that the experiment has computed.

    Args:
        config: of the candidate.
        candidate: an algorithm for frozen features.
        experiment: with features.
        folds: of the labels; if empty, the head is fitted to all labels and scored on the
            validation images.
    """
    start, trainer = cpu_seconds(), experiment.trainer
    plugin = registry.load("algorithms", candidate.algorithm)
    algorithm = plugin(config.algorithm, trainer.algorithm.task)
    images = trainer.batches.images
    assert images.features is not None

    def score(features: TrainingFeatures, inputs: Tensor, labels: Tensor) -> NDArray[np.bool_]:
        head = algorithm.fit(features, torch.Generator().manual_seed(0))
        with torch.no_grad():
            correct: NDArray[np.bool_] = (head(inputs).argmax(dim=-1) == labels).numpy()
        return correct

    if not folds:
        rows, labels = trainer.validation
        features = training_features(images, trainer.classifier.blocks)
        hits = score(features, images.features.gather(rows).cpu(), labels.cpu())
        return Trial(candidate, np.ones_like(hits), hits, cpu_seconds() - start, VALIDATION)
    labeled = images.features.gather(images.labeled).cpu()
    pool = images.features.gather(images.unlabeled).cpu()
    labels = images.labels.cpu()
    hits = np.zeros(len(labels), dtype=np.bool_)
    for train, test in folds:
        unlabeled = torch.cat([labeled[test], pool])
        features = TrainingFeatures(
            labeled[train][None], labels[train], unlabeled[None], trainer.classifier.blocks
        )
        hits[test] = score(features, labeled[test], labels[test])
    return Trial(candidate, np.ones_like(hits), hits, cpu_seconds() - start)


def fine_tuning_trial(
    config: RunConfig,
    candidate: Candidate,
    experiment: Experiment,
    folds: Folds,
    best: Trial,
    limit: float,
) -> Trial | None:
    """Train a candidate without one fold at a time, until it is clearly better or not better.

    Without folds, train it as the run would, and score it on the validation images. Return None if
    the time does not suffice.
    """
    start, split = cpu_seconds(), experiment.split
    if not folds:
        trainer = _trainer(config, experiment, split)
        hits = _train(trainer, *trainer.validation, limit)
        if hits is None:
            return None
        return Trial(candidate, np.ones_like(hits), hits, cpu_seconds() - start, VALIDATION)
    labels = torch.from_numpy(experiment.table.labels[split.labeled])
    tested = np.zeros(len(labels), dtype=np.bool_)
    trial = Trial(candidate, tested, np.zeros_like(tested), 0.0)
    for number, (train, test) in enumerate(folds[:FINE_TUNING_FOLDS]):
        if number and cpu_seconds() + trial.seconds / number > limit:
            break
        trainer = _trainer(config, experiment, _without_fold(config, experiment, train, test))
        # There are no validation images, so evaluations would only cost time.
        trainer.settings = trainer.settings.model_copy(update={"eval_every": trainer.steps})
        rows = trainer.batches.images.unlabeled[-len(test) :]
        hits = _train(trainer, rows, labels[test], None if number else limit)
        if hits is None:
            return None
        tested[test], trial.hits[test] = True, hits
        trial = replace(trial, seconds=cpu_seconds() - start)
        if trial.p_value(best) < LEVEL or not trial.leads(best):
            break
    return trial


def _trainer(config: RunConfig, experiment: Experiment, split: Split) -> Trainer:
    trainer = prepare(config, table=experiment.table, split=split).trainer
    if trainer.transfer is not None:  # its probe is not needed
        trainer.transfer = replace(trainer.transfer, probe=False)
    return trainer


def _train(
    trainer: Trainer, rows: Tensor, labels: Tensor, limit: float | None
) -> NDArray[np.bool_] | None:
    """Train, and return True for each correct prediction; None if the time does not suffice."""
    if limit is not None:
        trainer.stop = _time_limit(trainer, limit)
    if trainer.fit():
        return None
    probs = trainer.predict(rows, alone=True)
    hits: NDArray[np.bool_] = (probs.argmax(dim=-1) == labels.cpu()).numpy()
    return hits


def _time_limit(trainer: Trainer, limit: float) -> Callable[[], str]:
    """Return the stop function of a trainer whose last step must end before `limit`."""
    first = 0.0  # the end of step 1, which imports and allocates

    def reason() -> str:
        nonlocal first
        now = cpu_seconds()
        first = first or now
        seconds, steps = now - first, trainer.step - 1
        if not steps or (steps < TRIAL_STEPS and seconds < TRIAL_SECONDS):
            return ""
        return "no time" if now + seconds / steps * (trainer.steps - trainer.step) > limit else ""

    return reason


def _without_fold(
    config: RunConfig, experiment: Experiment, train: NDArray[np.int64], test: NDArray[np.int64]
) -> Split:
    """Return a split without the labels of a fold, whose images come last in the pool."""
    split, task = experiment.split, experiment.trainer.algorithm.task
    algorithm = registry.load("algorithms", config.settings.algo)(config.algorithm, task)
    empty = np.empty(0, dtype=np.int64)
    fold = split.labeled[test]
    pool = np.setdiff1d(split.unlabeled, fold) if algorithm.views().needs_unlabeled else empty
    return Split(split.labeled[train], np.concatenate([pool, fold]), empty, empty)
