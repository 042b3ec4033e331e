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
"""Indices of the labels to train on and to hold out."""

HELD_OUT, VALIDATION = "held-out labels", "validation images"
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


def fitted_trial(
    config: RunConfig, candidate: Candidate, experiment: Experiment, folds: Folds
) -> Trial:
    """Fit heads to the features that the experiment has computed.

    Args:
        config: of the candidate.
        candidate: it fits a head to frozen features.
        experiment: started.
        folds: of the labels; without any, all labels are fitted and the validation images tested.
    """
    started, trainer = computed(), experiment.trainer
    plugin = registry.load("algorithms", candidate.algorithm)
    algorithm = plugin(config.algorithm, trainer.algorithm.task)
    images = trainer.batches.images
    assert images.features is not None

    def hits(features: TrainingFeatures, inputs: Tensor, labels: Tensor) -> NDArray[np.bool_]:
        head = algorithm.fit(features, torch.Generator().manual_seed(0))
        with torch.no_grad():
            right: NDArray[np.bool_] = (head(inputs).argmax(dim=-1) == labels).numpy()
        return right

    if not folds:
        rows, labels = trainer.validation
        features = training_features(images, trainer.classifier.blocks)
        found = hits(features, images.features.gather(rows).cpu(), labels.cpu())
        return Trial(candidate, np.ones_like(found), found, computed() - started, VALIDATION)
    labeled = images.features.gather(images.labeled).cpu()
    pool = images.features.gather(images.unlabeled).cpu()
    labels = images.labels.cpu()
    found = np.zeros(len(labels), dtype=np.bool_)
    for kept, held_out in folds:
        unlabeled = torch.cat([labeled[held_out], pool])
        features = TrainingFeatures(
            labeled[kept][None], labels[kept], unlabeled[None], trainer.classifier.blocks
        )
        found[held_out] = hits(features, labeled[held_out], labels[held_out])
    return Trial(candidate, np.ones_like(found), found, computed() - started)


def tuned_trial(
    config: RunConfig,
    candidate: Candidate,
    experiment: Experiment,
    folds: Folds,
    best: Trial,
    limit: float,
) -> Trial | None:
    """Train a candidate without a fold, until the comparison is decided; None if too slow.

    Without folds it is trained as the run would be, and tested on the validation images.
    """
    started, split = computed(), experiment.split
    if not folds:
        trainer = _trainer(config, experiment, split)
        found = _trained_hits(trainer, *trainer.validation, limit)
        if found is None:
            return None
        return Trial(candidate, np.ones_like(found), found, computed() - started, VALIDATION)
    labels = torch.from_numpy(experiment.table.labels[split.labeled])
    tested = np.zeros(len(labels), dtype=np.bool_)
    trial = Trial(candidate, tested, np.zeros_like(tested), 0.0)
    for number, (kept, held_out) in enumerate(folds[:TUNED_FOLDS]):
        if number and computed() + trial.seconds / number > limit:
            break
        trainer = _trainer(config, experiment, _without_fold(config, experiment, kept, held_out))
        # Evaluating on training images is useless.
        trainer.settings = trainer.settings.model_copy(update={"eval_every": trainer.steps})
        places = trainer.batches.images.unlabeled[-len(held_out) :]
        found = _trained_hits(trainer, places, labels[held_out], None if number else limit)
        if found is None:
            return None
        tested[held_out], trial.hits[held_out] = True, found
        trial = replace(trial, seconds=computed() - started)
        if trial.chance(best) < LEVEL or not trial.leads(best):
            break
    return trial


def _trainer(config: RunConfig, experiment: Experiment, split: Split) -> Trainer:
    trainer = prepare(config, table=experiment.table, split=split).trainer
    if trainer.transfer is not None:  # its probe is not needed
        trainer.transfer = replace(trainer.transfer, probe=False)
    return trainer


def _trained_hits(
    trainer: Trainer, rows: Tensor, labels: Tensor, limit: float | None
) -> NDArray[np.bool_] | None:
    """Train; return which images are predicted, or None if the time does not suffice."""
    if limit is not None:
        trainer.stop = _watch(trainer, limit)
    if trainer.fit():
        return None
    probs = trainer.predict(rows, alone=True)
    found: NDArray[np.bool_] = (probs.argmax(dim=-1) == labels.cpu()).numpy()
    return found


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
    config: RunConfig, experiment: Experiment, kept: NDArray[np.int64], held_out: NDArray[np.int64]
) -> Split:
    """Return a split without the labels of a fold, whose images come last in the pool."""
    split, task = experiment.split, experiment.trainer.algorithm.task
    algorithm = registry.load("algorithms", config.settings.algo)(config.algorithm, task)
    nothing = np.empty(0, dtype=np.int64)
    held = split.labeled[held_out]
    pool = np.setdiff1d(split.unlabeled, held) if algorithm.views().needs_unlabeled else nothing
    return Split(split.labeled[kept], np.concatenate([pool, held]), nothing, nothing)
