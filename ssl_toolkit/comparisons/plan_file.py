"""The files that list the runs of a comparison: ``plan.json`` and ``failures.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ssl_toolkit.documents import Document, Part
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.text import display_path

Place = tuple[str, int, Path]
"""Row, seed, and the folder of that run."""

PLAN = "plan.json"
FAILURES = "failures.json"
MEASURING = "measuring"
"""The subfolder where the speed of the rows is measured; removed after."""


class PlannedRuns(Part):
    """The runs of a row, one for each seed."""

    name: str
    algorithm: str
    folder: str
    """Parent of the folders of its runs, relative to that of the comparison."""
    steps: int


class PlanFile(Document):
    """The runs of a comparison, finished or not: its ``plan.json``."""

    name: str
    """Title."""
    baseline: str | None
    allow: tuple[str, ...]
    """Shared keys in which rows may differ."""
    budget: str
    """What is equal for all rows."""
    threads: int
    """CPU threads of each run."""
    seeds: tuple[int, ...]
    rows: tuple[PlannedRuns, ...]

    @property
    def algorithms(self) -> dict[str, str]:
        """Algorithm by row."""
        return {row.name: row.algorithm for row in self.rows}

    def places(self, folder: Path) -> list[Place]:
        """Return the folders of all runs.

        Args:
            folder: of the comparison.
        """
        return [
            (row.name, seed, folder / row.folder / f"s{seed}")
            for row in self.rows
            for seed in self.seeds
        ]


class Failure(Part):
    """Why a run failed that could not write it into its own folder."""

    row: str
    seed: int
    reason: str


class FailuresFile(Document):
    """Reasons of failed runs: ``failures.json`` of a comparison."""

    failures: tuple[Failure, ...]


def read_plan(folder: Path) -> PlanFile:
    """Read the plan of a comparison folder.

    Raises:
        ConfigError: it is missing or damaged.
    """
    again = "the same `ssl-toolkit compare` command writes it again"
    try:
        return PlanFile.read(folder / PLAN)
    except FileNotFoundError as error:
        raise ConfigError(f"{display_path(folder / PLAN)}: not found; {again}") from error
    except ModelError as error:
        raise ConfigError(f"{error}; {again}") from error


def read_failures(folder: Path) -> dict[tuple[str, int], str]:
    """Read why runs failed that could not say so in their own folders, by row and seed.

    Args:
        folder: of a comparison; without a readable ``failures.json`` there are none.
    """
    try:
        found = FailuresFile.read(folder / FAILURES)
    except (FileNotFoundError, ModelError):
        return {}
    return {(one.row, one.seed): one.reason for one in found.failures}


def write_failures(folder: Path, failures: Mapping[tuple[str, int], str]) -> None:
    """Write ``failures.json``.

    Args:
        folder: of a comparison.
        failures: reasons by row and seed.
    """
    listed = (Failure(row=row, seed=seed, reason=why) for (row, seed), why in failures.items())
    FailuresFile(failures=tuple(listed)).write(folder / FAILURES)
