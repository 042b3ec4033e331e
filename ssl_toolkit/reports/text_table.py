"""Tables of text, and numbers as the text of their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssl_toolkit.comparisons.schema import ScoreStats

NOTHING = "–"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class TextTable:
    """A table of text: heads, and rows whose first cell names them."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def largest(self) -> float:
        """The largest number in its cells."""
        cells = [cell for row in self.rows for cell in row[1:] if cell[:1].isdigit()]
        return max(map(float, cells), default=0.0)


def share(value: float) -> str:
    """Format a score that is a share, the same in every table and page."""
    return f"{value:.4f}"


def stats_text(stats: ScoreStats, digits: int = 4, sign: str = "") -> str:
    """Format the mean of a score with its standard deviation, if it has one."""
    mean = f"{stats.mean:{sign}.{digits}f}"
    return mean if stats.deviation is None else f"{mean} ± {stats.deviation:.{digits}f}"


def p_text(value: float | None) -> str:
    """Format a p-value."""
    return NOTHING if value is None else "<0.0001" if value < 0.0001 else f"{value:.4f}"
