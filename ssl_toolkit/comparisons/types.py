"""What a comparison holds: rows of runs over the same seeds, and what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.summary import RunSummary

Status = Literal["completed", "failed", "interrupted", "running", "missing"]


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison."""

    row: str
    seed: int
    folder: Path
    status: Status
    reason: str = ""
    """Why it failed or was interrupted, one line."""
    summary: RunSummary | None = None
    """``summary.json``; None where there is none."""
    record: RunRecord | None = None
    """``record.json``."""
    config: Mapping[str, Any] | None = None
    """``config.yaml``, plain types."""

    @property
    def completed(self) -> bool:
        """Whether it has results."""
        return self.status == "completed"


@dataclass(frozen=True)
class ScoreStats:
    """One number of the completed runs of a row."""

    values: Mapping[int, float]
    """By seed."""
    mean: float
    deviation: float | None
    """Sample standard deviation (n - 1); None for one seed."""
    interval: tuple[float, float] | None
    """95 % interval of the mean over seeds; None for one seed and for equal values."""

    @property
    def count(self) -> int:
        """Number of seeds."""
        return len(self.values)


@dataclass(frozen=True)
class Difference:
    """A row against the baseline on the seeds that both completed."""

    spread: ScoreStats
    """Of the paired differences, row - baseline, of the test accuracy."""
    p_value: float | None
    """Two-sided paired t-test; None for one seed and for equal differences."""
    adjusted: float | None = None
    """The same after Holm's adjustment for the number of rows that were tested."""


@dataclass(frozen=True)
class Variant:
    """One algorithm, with its options, over all seeds."""

    name: str
    algorithm: str
    runs: tuple[ComparedRun, ...]
    scores: Mapping[str, ScoreStats]
    """By name, completed runs only; a score that no run has is left out: ``test.accuracy``,
    ``test.balanced_accuracy``, ``test.macro_f1``, ``test.ece``, ``test.nll``,
    ``validation.accuracy``, ``convergence_step``, ``seconds``, ``images_per_second``, ``steps``."""
    difference: Difference | None
    """None for the baseline itself and where there is no common seed."""
    overrides: Mapping[str, Any]
    """Shared keys that are not equal in all rows, by permission, with the value of this one."""
    uses_hidden_labels: bool = False
    """Whether the algorithm was given the hidden labels: a bound, not a competitor."""


@dataclass(frozen=True)
class Comparison:
    """All rows, checked to be comparable."""

    name: str
    rows: tuple[Variant, ...]
    seeds: tuple[int, ...]
    baseline: str | None
    """Name of the row that the others are compared with."""
    shared: Mapping[str, Any]
    """The configuration that all rows share."""
    fingerprint: str
    notes: tuple[str, ...] = ()
    """What a reader must know: different threads or devices or versions, what is missing."""
