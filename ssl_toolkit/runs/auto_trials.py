"""Trials of the candidates of ``--algo auto``: cross-validation, and short trainings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray

from ssl_toolkit import registry
from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.transfer import training_features
from ssl_toolkit.interfaces import FeatureAlgorithm, TrainingFeatures
from ssl_toolkit.runs.record import AutoTrial, Candidate

Folds = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Indices of the labels to train on and to hold out."""

HELD_OUT = "held-out labels"
LEVEL = 0.05
"""Significance level at which another candidate replaces the best so far."""
TUNED_FOLDS = 3
"""Most folds to train a fine-tuned candidate on; each costs as much as a run."""
TRIAL_STEPS, TRIAL_SECONDS = 5, 10.0
"""The rest of a fine-tuned candidate is estimated from so many steps, or seconds."""


@dataclass(frozen=True)
class Trial:
    """The result of cross-validating a candidate."""

    candidate: Candidate
    tested: NDArray[np.bool_]
    """(n,) True for held-out labels."""
    hits: NDArray[np.bool_]
    """(n,) True for those predicted by a model trained without them."""
    seconds: float
    images: str = HELD_OUT
    """The images it was tested on."""

    @property
    def name(self) -> str:
        """Name of the candidate."""
        return self.candidate.name

    def accuracy(self, where: NDArray[np.bool_] | None = None) -> float:
        """Return the share of the held-out labels, or of some of them, that were predicted."""
        return float(self.hits[self.tested if where is None else where].mean())

    def chance(self, other: Trial) -> float:
        """Return the `sign_test` against another candidate, on the common held-out labels."""
        both = self.tested & other.tested
        return sign_test(self.hits[both], other.hits[both])

    def leads(self, other: Trial) -> bool:
        """Return True if it predicts more of the common held-out labels."""
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


def computed() -> float:
    """Return the CPU time of this process per thread, which a busy machine does not change."""
    return time.process_time() / torch.get_num_threads()


def cross_validated(
    config: RunConfig,
    candidate: Candidate,
    experiment: Experiment,
    folds: Folds,
) -> Trial:
    """Fit heads to the features that the experiment has computed."""
    started = computed()
    plugin = registry.load("algorithms", candidate.algorithm)
    algorithm = plugin(config.algorithm, experiment.trainer.algorithm.task)
    hits = np.zeros(len(experiment.split.labeled), dtype=np.bool_)
    for kept, held_out in folds:
        hits[held_out] = _fitted(algorithm, experiment, kept, held_out)
    return Trial(candidate, np.ones_like(hits), hits, computed() - started)


def tuned_trial(
    config: RunConfig,
    candidate: Candidate,
    experiment: Experiment,
    folds: Folds,
    best: Trial,
    limit: float,
) -> Trial | None:
    """Train a candidate without a fold, until the comparison is decided; None if too slow."""
    split, labels = experiment.split, experiment.table.labels
    tested = np.zeros(len(split.labeled), dtype=np.bool_)
    trial = Trial(candidate, tested, np.zeros_like(tested), 0.0)
    started = computed()
    for number, (kept, held_out) in enumerate(folds[:TUNED_FOLDS]):
        if number and computed() + trial.seconds / number > limit:
            break
        trainer = _without_fold(config, experiment, kept, held_out)
        if not number:
            trainer.stop = _watch(trainer, limit)
        if trainer.fit():
            return None
        places = trainer.batches.images.unlabeled[-len(held_out) :]
        size = trainer.settings.eval_batch_size
        probs = predict(trainer.eval_model, trainer.batches.images.inputs, places, size)
        right = probs.argmax(dim=-1).numpy() == labels[split.labeled[held_out]]
        tested[held_out], trial.hits[held_out] = True, right
        trial = replace(trial, seconds=computed() - started)
        if trial.chance(best) < LEVEL or not trial.leads(best):
            break
    return trial


def validated(config: RunConfig, candidate: Candidate, experiment: Experiment) -> Trial:
    """Fit a head to the features of all labels and test it on the validation images."""
    started = computed()
    trainer = experiment.trainer
    images = trainer.batches.images
    assert images.features is not None
    plugin = registry.load("algorithms", candidate.algorithm)
    algorithm = plugin(config.algorithm, trainer.algorithm.task)
    features = training_features(images, trainer.classifier.blocks)
    head = algorithm.fit(features, torch.Generator().manual_seed(0))
    rows, labels = trainer.validation
    with torch.no_grad():
        probs = head(images.features.gather(rows).cpu())
    return _on_validation(candidate, probs, labels, started)


def tuned_and_validated(
    config: RunConfig, candidate: Candidate, experiment: Experiment, limit: float
) -> Trial | None:
    """Train a candidate as the run would, and test it on validation; None if there is no time."""
    started = computed()
    trainer = prepare(config, table=experiment.table, split=experiment.split).trainer
    if trainer.transfer is not None:  # its probe is not needed
        trainer.transfer = replace(trainer.transfer, probe=False)
    trainer.stop = _watch(trainer, limit)
    if trainer.fit():
        return None
    rows, labels = trainer.validation
    size = trainer.settings.eval_batch_size
    probs = predict(trainer.eval_model, trainer.batches.images.inputs, rows, size)
    return _on_validation(candidate, probs, labels, started)


def _on_validation(
    candidate: Candidate, probs: torch.Tensor, labels: torch.Tensor, started: float
) -> Trial:
    hits = (probs.argmax(dim=-1) == labels.cpu()).numpy()
    return Trial(candidate, np.ones_like(hits), hits, computed() - started, "validation images")


def _watch(trainer: Trainer, limit: float) -> Callable[[], str]:
    """Return the stop function of a trainer whose last step must come before `limit`."""
    first = 0.0  # when step 1 was done, which imports and allocates

    def late() -> str:
        nonlocal first
        now = computed()
        first = first or now
        spent, done = now - first, trainer.step - 1
        if not done or (done < TRIAL_STEPS and spent < TRIAL_SECONDS):
            return ""
        return "no time" if now + spent / done * (trainer.steps - trainer.step) > limit else ""

    return late


def _without_fold(
    config: RunConfig,
    experiment: Experiment,
    kept: NDArray[np.int64],
    held_out: NDArray[np.int64],
) -> Trainer:
    """Return a trainer without the labels of a fold, whose images come last in the pool."""
    split = experiment.split
    plugin = registry.load("algorithms", config.settings.algo)
    task = experiment.trainer.algorithm.task
    wants = plugin(config.algorithm, task).views().needs_unlabeled
    nothing = np.empty(0, dtype=np.int64)
    held = split.labeled[held_out]
    pool = np.setdiff1d(split.unlabeled, held) if wants else nothing
    part = Split(split.labeled[kept], np.concatenate([pool, held]), nothing, nothing)
    trainer = prepare(config, table=experiment.table, split=part).trainer
    if trainer.transfer is not None:  # its probe is not needed
        trainer.transfer = replace(trainer.transfer, probe=False)
    # Evaluating on training images is useless.
    trainer.settings = trainer.settings.model_copy(update={"eval_every": trainer.settings.steps})
    return trainer


def _fitted(
    algorithm: FeatureAlgorithm,
    experiment: Experiment,
    kept: NDArray[np.int64],
    held_out: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which held-out labels a head that is fitted without them predicts."""
    images = experiment.trainer.batches.images
    assert images.features is not None
    labeled = images.features.gather(images.labeled).cpu()
    pool = images.features.gather(images.unlabeled).cpu()
    labels = images.labels.cpu()
    features = TrainingFeatures(
        labeled[kept][None],
        labels[kept],
        torch.cat([labeled[held_out], pool])[None],
        experiment.trainer.classifier.blocks,
    )
    head = algorithm.fit(features, torch.Generator().manual_seed(0))
    with torch.no_grad():
        predicted = head(labeled[held_out]).argmax(dim=-1)
    hits: NDArray[np.bool_] = (predicted == labels[held_out]).numpy()
    return hits
