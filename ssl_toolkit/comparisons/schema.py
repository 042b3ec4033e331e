"""The files of a comparison: ``plan.json``, ``failures.json`` and ``comparison.json``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from ssl_toolkit.comparisons.curve_schema import LabelCurve
from ssl_toolkit.comparisons.encodable import Keys, Text
from ssl_toolkit.comparisons.time_schema import LevelsOf, Reached
from ssl_toolkit.config import yaml
from ssl_toolkit.config.label_counts import LabelKey
from ssl_toolkit.config.plugin_names import bare, section_of
from ssl_toolkit.config.settings import flatten, shared_keys
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.errors import ConfigError, ModelError, ToolkitError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.summary import RunSummary
from ssl_toolkit.text import display_path

PLAN = "plan.json"
CONFIG = "comparison.yaml"
FAILURES = "failures.json"
MEASURING = "measuring"
"""The subfolder where the speed of the rows is measured; it is temporary."""

Failures = dict[str, dict[int, str]]
"""Reasons of failed runs by row and seed."""

Status = Literal["completed", "failed", "interrupted", "running", "missing"]

_OF_SPLITS = {
    "test": ("accuracy", "balanced_accuracy", "macro_f1", "ece", "nll"),
    "validation": ("accuracy", "balanced_accuracy"),
}
_OF_SEVERAL = {"test": ("map", "micro_f1", "macro_f1", "exact"), "validation": ("map",)}
"""Scores under ``--task multilabel``."""
_OF_RUN = ("convergence_step", "seconds", "images_per_second", "steps")
SCORES = tuple(
    dict.fromkeys(
        [
            *(f"{split}.{name}" for split, names in _OF_SPLITS.items() for name in names),
            *_OF_RUN,
            *(f"{split}.{name}" for split, names in _OF_SEVERAL.items() for name in names),
        ]
    )
)
"""The scores that a row may have."""


def score_title(score: str) -> str:
    """Return a score as text, such as ``test balanced accuracy``."""
    return score.replace(".map", ".mAP").replace(".", " ").replace("_", " ")


def upper_bound(score: str) -> float:
    """Return the upper bound of a score; the lower one is 0."""
    return math.inf if score in _OF_RUN or score.endswith(".nll") else 1.0


class RunLocation(NamedTuple):
    """A run of a comparison, which may not exist yet."""

    row: str
    seed: int
    folder: Path
    algorithm: str = ""
    """Of the row, in case that its configuration can't be read."""
    method: str = ""
    """Name of the row without its number of labels; empty without a label curve."""
    labels: int | None = None
    """Number of labels; None without a label curve."""


class PlannedRuns(Part):
    """The runs of a row, one for each seed."""

    name: str
    algorithm: str
    folder: str
    """Path to the parent of its run folders, relative to the comparison."""
    steps: int
    method: str = ""
    """As in `RunLocation`."""
    labels: int | None = None
    """As in `RunLocation`."""


class PlanFile(Document):
    """The planned runs of a comparison: its ``plan.json``."""

    name: str
    """Title."""
    baseline: str | None
    allow: tuple[str, ...]
    """Shared settings in which rows may differ."""
    budget: str
    """The budget that all rows share."""
    threads: int
    """CPU threads of each run."""
    seeds: tuple[int, ...]
    rows: tuple[PlannedRuns, ...]
    curve: LabelKey | None = None
    """The setting with several numbers of labels; None without a label curve."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Reasons, by the name of an algorithm or a row that ``all`` leaves out."""

    def runs(self, folder: Path) -> list[RunLocation]:
        """Return all runs.

        Args:
            folder: Path to the comparison.
        """
        return [
            RunLocation(
                row.name,
                seed,
                folder / row.folder / f"s{seed}",
                row.algorithm,
                row.method,
                row.labels,
            )
            for row in self.rows
            for seed in self.seeds
        ]


def describe_left_out(reasons: Mapping[str, str]) -> str:
    """Return the names that ``all`` leaves out with their reasons, in one line.

    Args:
        reasons: By name.
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    listed = "; ".join(f"{', '.join(of)} ({reason})" for reason, of in names.items())
    return f"all leaves out {listed}"


class FailuresFile(Document):
    """Reasons of failed runs that are not in their folders: ``failures.json``."""

    failures: Failures


def read_plan(folder: Path) -> PlanFile:
    """Read the plan of a comparison folder.

    Raises:
        ConfigError: It is missing or damaged.
    """
    again = "the same `ssl-toolkit compare` command writes it again"
    try:
        return PlanFile.read(folder / PLAN)
    except FileNotFoundError as error:
        raise ConfigError(f"{display_path(folder / PLAN)}: not found; {again}") from error
    except ModelError as error:
        raise ConfigError(f"{error}; {again}") from error


def read_failures(folder: Path) -> Failures:
    """Read ``failures.json`` of a comparison folder; without a readable one there are none."""
    try:
        return FailuresFile.read(folder / FAILURES).failures
    except (FileNotFoundError, ModelError):
        return {}


class ComparedRun(Part):
    """One run of a comparison."""

    row: Text
    seed: int
    folder: Path
    status: Status
    reason: Text = ""
    """Why it failed or was interrupted, one line."""
    record: RunRecord | None = None
    """``record.json``; None if it can't be read."""
    summary: RunSummary | None = Field(default=None, exclude=True)
    """``summary.json``; None if it can't be read."""
    config: dict[str, Any] | None = Field(default=None, exclude=True)
    """``config.yaml`` in plain types; None if it can't be read."""

    @classmethod
    def read(cls, row: str, seed: int, path: Path, failure: str = "") -> ComparedRun:
        """Read a run; a problem with its files becomes its status and reason.

        Args:
            row: Row of the comparison.
            seed: Expected seed.
            path: Path to its folder, which may not exist.
            failure: Reason of a failure that is not recorded in its folder.
        """

        def run(status: Status, reason: str, **files: Any) -> ComparedRun:
            line = " ".join(reason.split())
            return cls(row=row, seed=seed, folder=path, status=status, reason=line, **files)

        folder = RunFolder(path)
        if not folder.summary.exists():
            reason = failure or ("no summary.json in its folder" if path.exists() else "")
            return run("failed" if failure else "missing", reason)
        try:
            summary = folder.read_summary()
            if summary.status != "completed":
                files = {"summary": summary, **_readable(folder)}
                status: Status = "failed" if failure else summary.status
                return run(status, failure or summary.reason or "", **files)
            if summary.seed != seed or not summary.classes:
                raise ModelError(f"summary.json: not of a run with seed {seed}")
            record, config = folder.read_record(), yaml.read(folder.config)
            if "algo" not in config:
                raise ModelError("config.yaml is not that of a run")
        except ToolkitError as error:
            return run("failed", str(error).replace(f"{path}/", ""))
        return run("completed", "", summary=summary, record=record, config=config)

    @property
    def completed(self) -> bool:
        """True if it has results."""
        return self.status == "completed"

    @property
    def scores(self) -> dict[str, float]:
        """The scores of a completed run by the names of `SCORES`; those not measured are absent."""
        if self.summary is None or not self.completed:
            return {}
        scores: dict[str, float | None] = {}
        for split, names in _OF_SPLITS.items():
            if (of_split := getattr(self.summary, split)) is not None:
                scores |= {f"{split}.{name}": getattr(of_split, name) for name in names}
        for split, names in _OF_SEVERAL.items() if self.summary.multilabel else ():
            if (several := getattr(self.summary.multilabel, split)) is not None:
                scores |= {f"{split}.{name}": getattr(several, name) for name in names}
        scores |= {name: getattr(self.summary, name) for name in _OF_RUN}
        return {name: value for name, value in scores.items() if value is not None}

    @property
    def algorithm(self) -> str:
        """The algorithm in its configuration, with its add-ons and without distributions."""
        return bare(str((self.config or {})["algo"]))

    @property
    def section(self) -> str:
        """The key of the options of its algorithm."""
        return section_of(self.algorithm)

    @property
    def options(self) -> dict[str, Any]:
        """The options of its algorithm, by dotted key."""
        return dict(flatten((self.config or {}).get(self.section) or {}))

    @property
    def shared_settings(self) -> dict[str, Any]:
        """The settings that all runs of a comparison share, by dotted key."""
        return shared_keys(self.config or {}, self.section)


class ScoreStats(Part):
    """Statistics of one score over the completed runs of a row."""

    values: dict[int, int | float]
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


class Difference(ScoreStats):
    """Paired differences of the score that ranks, row - baseline, on the seeds that both completed.

    Without test images there are none.
    """

    p_value: float | None
    """Two-sided paired t-test; None for one seed and for equal differences."""
    adjusted_p_value: float | None = None
    """The p-value after Holm's adjustment for the number of rows that were tested."""


class Variant(Part):
    """A row: one algorithm, with its options, over all seeds."""

    name: Text
    method: Text = ""
    """The name without the number of labels; the name itself without a label curve."""
    labels: int | None = None
    """Number of labels, per class or in total; None without a label curve."""
    algorithm: Text
    uses_hidden_labels: bool = False
    """True if the algorithm gets the hidden labels: an upper bound, not a competitor."""
    overrides: Keys
    """Permitted differences: values of the shared settings that are not equal in all rows."""
    run_defaults: tuple[Text, ...] = ()
    """Keys of `overrides` whose values are run defaults of the algorithm."""
    options: Keys
    """Options of the algorithm."""
    scores: dict[str, ScoreStats]
    """By name, completed runs only; a score that no run has is absent: ``test.accuracy``,
    ``test.balanced_accuracy``, ``test.macro_f1``, ``test.ece``, ``test.nll``,
    ``validation.accuracy``, ``validation.balanced_accuracy``, ``convergence_step``, ``seconds``,
    ``images_per_second``, ``steps``."""
    reached: tuple[Reached, ...] = ()
    """For each level; empty without validation images."""
    difference: Difference | None
    """None for the baseline itself and without a common seed. Along a label curve, the baseline is
    the row with the same number of labels."""
    runs: tuple[ComparedRun, ...]

    @property
    def completed_runs(self) -> tuple[ComparedRun, ...]:
        """The runs that have results."""
        return tuple(run for run in self.runs if run.completed)


class Comparison(Document):
    """All rows, checked to be comparable."""

    name: Text
    baseline: Text | None
    """`Variant.method` of the rows that the others are compared with."""
    seeds: tuple[int, ...]
    fingerprint: str
    """Hash of the shared settings."""
    ranked_by: str = "test.accuracy"
    """Name of the score that ranks: the balanced accuracy where the classes are uneven."""
    levels_of: LevelsOf = ""
    """The rows whose accuracy `Reached.fraction` is a share of."""
    rows: tuple[Variant, ...]
    notes: tuple[Text, ...] = ()
    """Notes for readers: differences in threads, devices and versions, missing results."""
    shared: Keys
    """The settings that all rows share."""
    curve: LabelCurve | None = None
    """None if all rows have the same number of labels."""

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """The runs of all rows."""
        return tuple(run for row in self.rows for run in row.runs)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the rows without numbers of labels, in their order."""
        return tuple(dict.fromkeys(row.method for row in self.rows))

    @property
    def is_single(self) -> bool:
        """True if it has one run only."""
        return len(self.runs) == 1

    @property
    def versions(self) -> dict[str, tuple[str, ...]]:
        """The versions of each package in the completed runs."""
        versions: dict[str, dict[str, None]] = {}
        for record in (run.record for run in self.runs if run.completed):
            for name, version in record.versions.items() if record else ():
                versions.setdefault(name, {})[version] = None
        return {name: tuple(seen) for name, seen in versions.items()}


def _readable(folder: RunFolder) -> dict[str, Any]:
    """Return record and configuration of a run without results, if they can be read."""
    files: dict[str, Any] = {}
    with contextlib.suppress(ToolkitError):
        files["record"] = folder.read_record()
    with contextlib.suppress(ToolkitError):
        if "algo" in (config := yaml.read(folder.config)):
            files["config"] = config
    return files
