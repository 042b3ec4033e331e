"""The summary of stages, ``stages.json``."""

from __future__ import annotations

import csv
from pathlib import Path

from ssl_toolkit.comparisons.schema import ComparedRun
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.stages.config import StagesConfig

CONFIG = "stages.yaml"
SUMMARY = "stages.json"


class PseudoLabelCounts(Part):
    """Counts of the pseudo labels that a stage starts from."""

    pool: int
    """Images of the pool."""
    labeled: int
    """Images with a pseudo label."""
    known: int
    """Pseudo labels of images whose label is in the data."""
    correct: int
    """Pseudo labels that equal the label in the data."""

    @classmethod
    def read(cls, path: Path) -> PseudoLabelCounts:
        """Count the rows of a file of pseudo labels.

        Args:
            path: Path to a file of ``pseudo_labels/``.
        """
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(row["label"], row["data_label"]) for row in csv.DictReader(file)]
        labeled = [(label, known) for label, known in rows if label]
        return cls(
            pool=len(rows),
            labeled=len(labeled),
            known=sum(bool(known) for _, known in labeled),
            correct=sum(label == known for label, known in labeled),
        )


class StageSummary(Part):
    """A stage and its results."""

    name: str
    algorithm: str
    status: str
    """``completed``, ``failed``, ``interrupted``, ``running`` or ``missing``."""
    reason: str
    """Why it failed or was interrupted."""
    weights_from: str | None
    labels_from: tuple[str, ...]
    pseudo_labels: PseudoLabelCounts | None
    """None if the stage starts from none."""
    test_accuracy: float | None
    validation_accuracy: float | None


class StagesSummary(Document):
    """Content of ``stages.json``: the stages of a folder and their results."""

    stages: tuple[StageSummary, ...]


def run_path(folder: Path, stage: str) -> Path:
    """Return the path to the run of a stage."""
    return folder / "stages" / stage


def labels_path(folder: Path, stage: str) -> Path:
    """Return the path to the pseudo labels that a stage starts from."""
    return folder / "pseudo_labels" / f"{stage}.csv"


def summarize_stages(config: StagesConfig, folder: Path) -> StagesSummary:
    """Read the results of stages from their folders."""
    stages = []
    for stage in config.stages:
        run = ComparedRun.read(stage.name, stage.config.settings.seed, run_path(folder, stage.name))
        labels = labels_path(folder, stage.name)
        stages.append(
            StageSummary(
                name=stage.name,
                algorithm=stage.config.settings.algo,
                status=run.status,
                reason=run.reason,
                weights_from=stage.sources.weights_from,
                labels_from=tuple(stage.sources.labels_from),
                pseudo_labels=PseudoLabelCounts.read(labels) if labels.exists() else None,
                test_accuracy=run.scores.get("test.accuracy"),
                validation_accuracy=run.scores.get("validation.accuracy"),
            )
        )
    return StagesSummary(stages=tuple(stages))
