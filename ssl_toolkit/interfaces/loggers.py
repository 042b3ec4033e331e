"""Where the course of a run is sent, beside the files that every run writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class RunInfo:
    """The run that is logged."""

    folder: Path
    """Of the run."""
    name: str
    """Of the folder: ``simple-digits-s0``."""
    algorithm: str
    seed: int
    config: Mapping[str, Any]
    """The resolved configuration, plain types, nested."""
    step: int
    """The step after which the rows go on: 0 at the start, more when resumed."""
    group: str | None = None
    """Name of the comparison that the run belongs to, if it does."""


class Logger(ABC):
    """Sends rows of metrics somewhere. A package that is missing is told by ``__init__``.

    A run that is resumed logs on under the same identity, and rows after `RunInfo.step` that an
    earlier process sent may come a second time.

    Args:
        run: what is logged.

    Raises:
        UserError: a package is missing or the place can't be reached; before the first step.
    """

    plugin_kind: ClassVar[str] = "loggers"
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that it imports; one that is missing is told before the run's folder is made."""
    note: str = ""
    """One line for the user, shown once after the start: where the run can be seen."""

    @abstractmethod
    def __init__(self, run: RunInfo) -> None: ...

    @abstractmethod
    def log(self, row: Mapping[str, float | int]) -> None:
        """Take one row as it stands in ``metrics.jsonl``: ``step``, and numbers by dotted name."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Close; called once, however the run ended.

        Args:
            summary: as in ``summary.json``; its ``status`` says how.
        """
