"""Loggers, which send the metrics of a run to other tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ssl_toolkit.config.comparability import flatten


@dataclass(frozen=True)
class RunInfo:
    """The run that is logged."""

    folder: Path
    """Path to the folder of the run."""
    name: str
    """Name of the folder: ``my_method-birds-s0``."""
    algorithm: str
    seed: int
    config: Mapping[str, Any]
    """The resolved configuration, plain types, nested."""
    step: int
    """Step after which the rows continue: 0 at the start, more when resumed."""
    group: str | None = None
    """Name of the comparison that the run belongs to, if any."""

    def parameters(self) -> dict[str, Any]:
        """Return the values of the configuration by dotted key: ``optimizer.name``."""
        return dict(flatten(self.config))


class Logger(ABC):
    """Sends rows of metrics to another tool.

    A resumed run logs under the same identity, and rows after `RunInfo.step` that an earlier
    process sent may be sent a second time.

    Args:
        run: The run that is logged.

    Raises:
        UserError: The tool can't be reached or used; raised before the first step.
    """

    plugin_kind: ClassVar[str] = "loggers"
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that it imports; a missing one is an error before the run's folder is made."""
    note: str = ""
    """One line for the user, printed once after the start: where the run can be seen."""

    @abstractmethod
    def __init__(self, run: RunInfo) -> None: ...

    @abstractmethod
    def log(self, row: Mapping[str, float | int]) -> None:
        """Send one row as it is in ``metrics.jsonl``: ``step``, and numbers by dotted name."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Close; called once, however the run ended.

        Args:
            summary: Content of ``summary.json``; its ``status`` says how the run ended.
        """

    @staticmethod
    def final_scores(summary: Mapping[str, Any]) -> dict[str, float]:
        """Return the test scores of a finished run by dotted name: ``test.accuracy``.

        Args:
            summary: As for `finish`.
        """
        scores = summary.get("test") or {}
        return {f"test.{k}": float(v) for k, v in scores.items() if isinstance(v, int | float)}
