"""The files that list the runs of a comparison: ``plan.json`` and ``failures.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ssl_toolkit.documents import Document, Part
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.text import display_path

PLAN = "plan.json"
CONFIG = "comparison.yaml"
FAILURES = "failures.json"
MEASURING = "measuring"
"""The subfolder where the speed of the rows is measured; it is temporary."""

Failures = dict[tuple[str, int], str]
"""Reasons of failed runs by row and seed."""


class RunPlace(NamedTuple):
    """A run of a comparison, which may not exist yet."""

    row: str
    seed: int
    folder: Path


class PlannedRuns(Part):
    """The runs of a row, one for each seed."""

    name: str
    algorithm: str
    folder: str
    """Path to the parent of its run folders, relative to the comparison."""
    steps: int


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

    def runs(self, folder: Path) -> list[RunPlace]:
        """Return all runs.

        Args:
            folder: Path to the comparison.
        """
        return [
            RunPlace(row.name, seed, folder / row.folder / f"s{seed}")
            for row in self.rows
            for seed in self.seeds
        ]


class Failure(Part):
    """The reason of a failed run that is not recorded in the folder of the run."""

    row: str
    seed: int
    reason: str


class FailuresFile(Document):
    """Reasons of failed runs: ``failures.json`` of a comparison."""

    failures: tuple[Failure, ...]


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
        failures = FailuresFile.read(folder / FAILURES).failures
    except (FileNotFoundError, ModelError):
        return {}
    return {(failure.row, failure.seed): failure.reason for failure in failures}


def write_failures(folder: Path, failures: Mapping[tuple[str, int], str]) -> None:
    """Write ``failures.json`` to a comparison folder."""
    listed = (Failure(row=row, seed=seed, reason=why) for (row, seed), why in failures.items())
    FailuresFile(failures=tuple(listed)).write(folder / FAILURES)
