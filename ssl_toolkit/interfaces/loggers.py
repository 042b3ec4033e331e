"""Loggers, which send the metrics of a run to other tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ssl_toolkit.config.settings import flatten


@dataclass(frozen=True)
class RunInfo:
    """Name, folder and configuration of the run to log."""

    folder: Path
    """Path to the folder of the run."""
    name: str
    """Name of the folder: ``my_method-birds-s0``."""
    algorithm: str
    seed: int
    config: Mapping[str, Any]
    """Resolved configuration: nested dicts of plain types."""
    step: int
    """Step of the checkpoint that the run resumes from; 0 for a new run."""
    group: str | None = None
    """Name of the comparison that the run belongs to, if any."""

    def parameters(self) -> dict[str, Any]:
        """Return the values of the configuration by dotted key: ``optimizer.name``."""
        return dict(flatten(self.config))


class Logger(ABC):
    """Base class of loggers, which send rows of metrics to another tool.

    A resumed run has the same name and folder, and repeats rows after `RunInfo.step`.

    Args:
        run: The run to log.

    Raises:
        UserError: The tool is not available; raised before the first step.
    """

    plugin_kind: ClassVar[str] = "loggers"
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that it imports; if one is not installed, the run doesn't start."""
    note: str = ""
    """One line to print at the start of the run, such as the URL of the run."""

    @abstractmethod
    def __init__(self, run: RunInfo) -> None: ...

    @abstractmethod
    def log(self, row: Mapping[str, float | int]) -> None:
        """Send a row of ``metrics.jsonl``: ``step``, and numbers by dotted name."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Close the logger; called once for every status of the run.

        Args:
            summary: Content of ``summary.json``, with the ``status`` of the run.
        """

    @staticmethod
    def final_scores(summary: Mapping[str, Any]) -> dict[str, float]:
        """Return the test scores of a finished run by dotted name: ``test.accuracy``.

        Args:
            summary: As for `finish`.
        """
        scores = summary.get("test") or {}
        return {f"test.{k}": float(v) for k, v in scores.items() if isinstance(v, int | float)}
