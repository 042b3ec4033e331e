"""What the labels say of a candidate of ``--algo auto``: cross-validation, and short trainings."""

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
"""Places of the labels that are kept and that are held out."""

HELD_OUT = "held-out labels"
LEVEL = 0.05
"""Another candidate than the best so far is taken if chance explains its lead less often."""
TUNED_FOLDS = 3
"""Folds that a fine-tuned candidate is trained for at most; each costs as much as a run."""
TRIAL_STEPS, TRIAL_SECONDS = 5, 10.0
"""So many steps of a fine-tuned candidate after the first, or what is done in so long, say whether
there is time for the rest."""


@dataclass(frozen=True)
class Trial:
    """What cross-validation found for one candidate."""

    candidate: Candidate
    tested: NDArray[np.bool_]
    """(n,) which labels were held out."""
    hits: NDArray[np.bool_]
    """(n,) whether each of those was predicted by a model that had not seen it."""
    seconds: float
    images: str = HELD_OUT
    """What it was tested on."""

    @property
    def name(self) -> str:
        """Of the candidate."""
        return self.candidate.name

    def accuracy(self, where: NDArray[np.bool_] | None = None) -> float:
        """Share of the held-out labels, or of some of them, that were predicted."""
        return float(self.hits[self.tested if where is None else where].mean())

    def chance(self, other: Trial) -> float:
        """`sign_test` against another candidate, on the labels that both were tested on."""
        both = self.tested & other.tested
        return sign_test(self.hits[both], other.hits[both])

    def leads(self, other: Trial) -> bool:
        """Whether it predicts more of the labels that both were tested on."""
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
    """One-sided p-value of an exact sign test: chance of such a lead if both were as good."""
    wins, losses = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    n = wins + losses
    return float(sum(comb(n, k) for k in range(wins, n + 1)) / 2**n)


def computed() -> float:
    """Seconds of computing of this process, which a busy machine does not lengthen."""
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
    """Train a candidate without a fold, until the comparison is decided; None: no time for it."""
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
    """Train a candidate as the run would, and test it on validation; None: no time for it."""
    started = computed()
    trainer = prepare(config, table=experiment.table, split=experiment.split).trainer
    if trainer.transfer is not None:  # its probe is not asked for
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
    """What stops a trainer as soon as it is known that its last step would come after `limit`."""
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
    """A trainer on the labels without a fold, whose images come last in the pool."""
    split = experiment.split
    plugin = registry.load("algorithms", config.settings.algo)
    task = experiment.trainer.algorithm.task
    wants = plugin(config.algorithm, task).views().needs_unlabeled
    nothing = np.empty(0, dtype=np.int64)
    held = split.labeled[held_out]
    pool = np.setdiff1d(split.unlabeled, held) if wants else nothing
    part = Split(split.labeled[kept], np.concatenate([pool, held]), nothing, nothing)
    trainer = prepare(config, table=experiment.table, split=part).trainer
    if trainer.transfer is not None:  # its probe is not asked for
        trainer.transfer = replace(trainer.transfer, probe=False)
    # Evaluation on training images would tell nothing.
    trainer.settings = trainer.settings.model_copy(update={"eval_every": trainer.settings.steps})
    return trainer


def _fitted(
    algorithm: FeatureAlgorithm,
    experiment: Experiment,
    kept: NDArray[np.int64],
    held_out: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Whether the held-out labels are predicted by a head that is fitted without them."""
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
    found: NDArray[np.bool_] = (predicted == labels[held_out]).numpy()
    return found
