"""The declaration of a logged metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A number in ``metrics.jsonl``, declared once for the log, the terminal and the report."""

    name: str
    """Key in ``metrics.jsonl``; for a metric of an algorithm, the name in `StepOutput.metrics`,
    which the log prefixes with ``train.``."""
    title: str = ""
    """Heading of its chart; the name if empty."""
    help: str = ""
    """Definition in a few words, with the unit or the range."""
    reduction: Literal["mean", "sum"] = "mean"
    """How the processes of a run combine their values; over steps it is always the mean."""
