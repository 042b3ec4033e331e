"""The summary of a run: its counts, scores and health, and ``summary.json``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from ssl_toolkit.data.readers.priors import PriorFile
from ssl_toolkit.data.splits.draw import Rows, Split
from ssl_toolkit.data.splits.strangers import count_strangers
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.interfaces import FeatureAlgorithm
from ssl_toolkit.interfaces.datasets import STRANGER
from ssl_toolkit.models.known_scores import are_many
from ssl_toolkit.runs.health import alarms, is_evaluation
from ssl_toolkit.runs.multilabel import MultiLabelResults
from ssl_toolkit.runs.scoring import are_uneven, area_under_roc, convergence_step

Status = Literal["running", "completed", "interrupted", "failed"]


class ClassScore(Part):
    """Accuracy on the images of one class."""

    accuracy: float | None
    """None if the class has no images."""
    count: int


class Scores(Part):
    """Scores of a model on labeled images."""

    accuracy: float
    count: int
    """Number of images."""
    balanced_accuracy: float
    """Mean of the recalls of the classes that are present."""
    macro_f1: float
    """Mean over all classes."""
    ece: float
    """Expected calibration error, 15 bins."""
    nll: float
    """Negative log likelihood in nats, mean over the images."""
    top5: float | None = None
    """Accuracy of the five most probable classes."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the accuracy over the images."""
    balanced_interval: tuple[float, float] | None = None
    """95 % bootstrap interval of the balanced accuracy, over the images of each class."""
    per_class: dict[str, ClassScore]
    """By class name."""

    @property
    def uneven(self) -> bool:
        """True if the classes are so uneven that the balanced accuracy ranks."""
        return are_uneven(score.count for score in self.per_class.values())


class ProbeScores(Part):
    """Scores of the linear probe, and the difference from those of the run."""

    balanced: bool = False
    """True if the numbers are of the balanced accuracy, because the classes are uneven."""
    accuracy: float
    count: int
    difference: float
    """Accuracy of the run minus that of the probe."""
    interval: tuple[float, float]
    """95 % interval of the difference, paired by image."""


class ProbeSummary(Part):
    """The linear probe of a pre-trained run: logistic regression on its frozen features."""

    strength: float
    """Inverse regularization."""
    cross_validation: float | None
    """Accuracy in cross-validation on the labels."""
    validation: ProbeScores | None
    test: ProbeScores | None


class Counts(Part):
    """Number of images in each part of the data."""

    labeled: int
    unlabeled: int
    validation: int
    test: int


class Health(Part):
    """Signs of failed training."""

    alarms: tuple[str, ...]
    labeled: dict[str, int]
    """Number of labels per class."""
    pseudo_labels: dict[str, int] | None = None
    """Pseudo labels per class between the last two evaluations; None if there were none."""


class Imbalance(Part):
    """Long tails that were drawn, for a run with the setting ``imbalance``."""

    ratios: tuple[str, ...]
    """Such as ``labels 50`` and ``pool 1/50``: the first class to the last."""
    labels: dict[str, int]
    """Number of labels per class."""
    pool: dict[str, int] | None
    """Number of unlabeled images per class; None if the classes of some are not known."""


class ExpectedStrangers(Part):
    """Estimate of the least share of the unlabeled images that belongs to no class."""

    share: float
    lower: float
    """Lower end of its one-sided 97.5 % interval."""

    @property
    def warning(self) -> str:
        """Message for the user; empty if there are few."""
        if not are_many(self.share, self.lower):
            return ""
        return (
            f"{self.share:.0%} of the unlabeled images or more ({self.lower:.0%} at least, with "
            "97.5 % confidence) seem to belong to no class: they score worse than validation "
            "images do; to leave them out of training, use --drop-strangers hard"
        )


class DroppedStrangers(Part):
    """Unlabeled images that ``drop_strangers`` left out of the last batches."""

    images: int
    """Number of images left out; under ``soft``, of those that were drawn in less than half of the
    epochs."""
    strangers: int | None
    """Number of these that are strangers; None without the setting ``strangers``."""
    auroc: float | None
    """Area under the ROC curve of the score, for strangers against the other images; None without
    the setting ``strangers``."""
    expected: ExpectedStrangers | None
    """Estimate by the scores of the last selection, below which no image is left out; None with too
    few validation images."""


class RunSummary(Document):
    """Status and results of a run: its ``summary.json``."""

    status: Status
    reason: str | None = None
    """Reason of an interruption or failure, in one line."""
    algorithm: str
    backbone: str | None
    seed: int
    profile: str
    recipe: str | None = None
    """Row of a published table whose settings the run has."""
    scale: float = 1.0
    """Factor by which the steps of the recipe are shortened."""
    steps: int
    """Steps done."""
    best_step: int | None
    """Step with the best validation accuracy, whose weights are tested."""
    convergence_step: int | None
    counts: Counts
    imbalance: Imbalance | None = None
    class_shares: PriorFile | None = None
    """Estimated class shares of the pool, as in ``prior.json``; None until the run ends."""
    strangers: int = 0
    """Number of unlabeled images of no class, for a run with the setting ``strangers``."""
    dropped: DroppedStrangers | None = None
    """None without the setting ``drop_strangers``, or before the first scores."""
    expected_strangers: ExpectedStrangers | None = None
    """None until the run ends, and with fewer than 50 validation images."""
    classes: tuple[str, ...]
    """Names in the order of the probabilities."""
    validation: Scores | None
    """None until the run ends, or if there are no validation images."""
    test: Scores | None
    """None until the run ends, or if there are no test images."""
    multilabel: MultiLabelResults | None = None
    """Scores under ``--task multilabel``, where `validation` and `test` are None; else None."""
    probe: ProbeSummary | None
    fitted: bool
    """True if a head was fitted to frozen features instead of trained in steps."""
    health: Health
    fingerprint: str
    """Hash of the settings that compared runs must share."""
    device: str
    seconds: float
    images_per_second: float | None

    @property
    def is_tested(self) -> bool:
        """True if it has scores on test images."""
        return (self.test or (self.multilabel and self.multilabel.test)) is not None


Results = dict[str, Scores | None]
"""Scores by part, None for an empty one."""


class RunResult(Part):
    """The result of a run, as `train` and `resume` return it."""

    folder: Path
    """The folder of the run."""
    summary: RunSummary
    """Status and results, as in ``summary.json``."""
    signal: str = ""
    """Name of the signal that ended it early, such as ``SIGINT``."""

    @property
    def status(self) -> Status:
        """``completed``, ``interrupted`` or ``failed``."""
        return self.summary.status

    @property
    def validation(self) -> Scores | None:
        """Scores on the validation images; None without any."""
        return self.summary.validation

    @property
    def test(self) -> Scores | None:
        """Scores on the test images; None without any."""
        return self.summary.test

    @property
    def multilabel(self) -> MultiLabelResults | None:
        """Scores under ``--task multilabel``; None under another task, or before the run ends."""
        return self.summary.multilabel


def counts(split: Split) -> Counts:
    """Count the images of each part."""
    return Counts(
        labeled=len(split.labeled),
        unlabeled=len(split.unlabeled),
        validation=len(split.validation),
        test=len(split.test),
    )


def summary_of(
    experiment: Experiment,
    status: Status,
    rows: Iterable[dict[str, Any]] = (),
    reason: str | None = None,
) -> RunSummary:
    """Return the summary of a run, without scores.

    Args:
        experiment: The experiment in its current state.
        status: ``running``, ``completed``, ``interrupted`` or ``failed``.
        rows: Rows of metrics, from which the alarms are computed.
        reason: Why the run ended early.
    """
    settings, trainer = experiment.config.settings, experiment.trainer
    return RunSummary(
        status=status,
        reason=reason,
        algorithm=settings.algo,
        backbone=settings.backbone,
        seed=settings.seed,
        profile=settings.profile,
        recipe=settings.recipe,
        scale=settings.scale,
        steps=trainer.saved,
        best_step=None if trainer.best is None else trainer.best.step,
        convergence_step=convergence_step(trainer.evaluations),
        counts=counts(experiment.split),
        imbalance=_imbalance(experiment),
        strangers=count_strangers(experiment.table, experiment.split),
        dropped=_dropped(experiment),
        classes=experiment.classes,
        validation=None,
        test=None,
        probe=None,
        fitted=isinstance(trainer.algorithm, FeatureAlgorithm),
        health=_health(experiment, rows),
        fingerprint=experiment.config.fingerprint(),
        device=str(experiment.device),
        seconds=trainer.seconds,
        images_per_second=trainer.images / trainer.seconds if trainer.seconds else None,
    )


def _imbalance(experiment: Experiment) -> Imbalance | None:
    split = experiment.split
    if not split.imbalance:
        return None
    hidden = experiment.table.labels[split.unlabeled]
    known = len(hidden) > 0 and bool((hidden >= 0).all())
    return Imbalance(
        ratios=split.imbalance,
        labels=_per_class(experiment, split.labeled),
        pool=_per_class(experiment, split.unlabeled) if known else None,
    )


def _dropped(experiment: Experiment) -> DroppedStrangers | None:
    pool_filter = experiment.trainer.pool_filter
    if pool_filter is None or pool_filter.scores is None:
        return None
    dropped = pool_filter.weights < 0.5
    expected = None
    if pool_filter.estimate is not None:
        share, lower = pool_filter.estimate
        expected = ExpectedStrangers(share=round(share, 6), lower=round(lower, 6))
    strangers = experiment.trainer.batches.images.hidden.cpu() == STRANGER
    if not strangers.any():
        return DroppedStrangers(
            images=int(dropped.sum()), strangers=None, auroc=None, expected=expected
        )
    return DroppedStrangers(
        images=int(dropped.sum()),
        strangers=int((dropped & strangers).sum()),
        auroc=area_under_roc(pool_filter.scores.double().numpy(), strangers.numpy()),
        expected=expected,
    )


def _per_class(experiment: Experiment, rows: Rows) -> dict[str, int]:
    counts = experiment.table.class_counts(rows).tolist()
    return dict(zip(experiment.classes, counts, strict=True))


def _health(experiment: Experiment, rows: Iterable[dict[str, Any]]) -> Health:
    """Return the alarms, and labels and recent pseudo labels per class."""
    evaluations = [row for row in rows if is_evaluation(row)]
    used = experiment.trainer.pseudo_labels
    return Health(
        alarms=tuple(alarms(evaluations, steps=experiment.config.settings.steps)),
        labeled=_per_class(experiment, experiment.split.labeled),
        pseudo_labels=dict(zip(experiment.classes, used, strict=True)) if any(used) else None,
    )
