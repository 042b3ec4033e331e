"""One run of a comparison, read from its folder; whatever is wrong with it has a name."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

from ssl_toolkit.comparisons.types import ComparedRun, Status
from ssl_toolkit.config import yaml
from ssl_toolkit.errors import ModelError, ToolkitError
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.summary import RunSummary
from ssl_toolkit.text import display_text

_PARTS = {
    "test": ("accuracy", "balanced_accuracy", "macro_f1", "ece", "nll"),
    "validation": ("accuracy",),
}
_PLAIN = ("convergence_step", "seconds", "images_per_second", "steps")
SCORES = (*(f"{part}.{name}" for part, names in _PARTS.items() for name in names), *_PLAIN)
"""Every score that a row may have."""


def highest(score: str) -> float:
    """The end of a score's range, which begins at 0."""
    return 1.0 if score.partition(".")[0] in _PARTS and not score.endswith(".nll") else math.inf


def read_run(row: str, seed: int, path: Path, failure: str = "") -> ComparedRun:
    """Read one run; whatever is wrong with it becomes its status and its reason.

    Args:
        row: of the comparison.
        seed: that the run must have.
        path: its folder, which may not exist.
        failure: why it failed, where it could not say so itself.
    """
    folder = RunFolder(path)
    if not folder.summary.exists():
        reason = failure or ("no summary.json in its folder" if path.exists() else "")
        return ComparedRun(row, seed, path, "failed" if failure else "missing", _line(reason))
    try:
        summary = folder.read_summary()
        if summary.status != "completed":
            status: Status = "failed" if failure else summary.status
            reason = _line(failure or summary.reason or "")
            return ComparedRun(row, seed, path, status, reason, summary, *_lenient(folder))
        if summary.seed != seed or not summary.classes:
            raise ModelError(f"summary.json: not of a run with seed {seed}")
        record, config = folder.read_record(), yaml.read(folder.config)
        if "algo" not in config:
            raise ModelError("config.yaml is not that of a run")
    except ToolkitError as error:
        return ComparedRun(row, seed, path, "failed", _line(str(error).replace(f"{path}/", "")))
    return ComparedRun(row, seed, path, "completed", "", summary, record, config)


def scores_of(summary: RunSummary) -> dict[str, float]:
    """Return the scores of a run by the names of `SCORES`; what was not measured is left out."""
    found: dict[str, float | None] = {}
    for part, names in _PARTS.items():
        scores = getattr(summary, part)
        if scores is not None:
            found |= {f"{part}.{name}": getattr(scores, name) for name in names}
    found |= {name: getattr(summary, name) for name in _PLAIN}
    return {name: value for name, value in found.items() if value is not None}


def _lenient(folder: RunFolder) -> tuple[RunRecord | None, dict[str, Any] | None]:
    """Return record and configuration of a run without results, as far as they can be read."""
    record, config = None, None
    with contextlib.suppress(ToolkitError):
        record = folder.read_record()
    with contextlib.suppress(ToolkitError):
        config = yaml.read(folder.config)
    return record, config if config and "algo" in config else None


def _line(text: str) -> str:
    return display_text(" ".join(text.split()))
