"""Declarations of logged metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """Declaration of a metric for the log, the terminal and the report."""

    name: str
    """Key in ``metrics.jsonl``; for an algorithm, the key in `StepOutput.metrics`, which the log
    prefixes with ``train.``."""
    title: str = ""
    """Title of its chart; the name if empty."""
    help: str = ""
    """Definition in a few words, with unit or range."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction over the processes of a run; over steps, metrics are averaged."""
