"""Times to an accuracy, as ``comparison.json`` has them."""

from __future__ import annotations

from typing import Literal

from ssl_toolkit.documents import Part

LevelsOf = Literal["", "upper bound", "best row"]
"""The row whose validation accuracy sets the levels of `Reached`; empty if they were given."""


class Reached(Part):
    """The seconds of training after which the runs of a row are as accurate as a level."""

    fraction: float | None
    """Share of the accuracy that sets the level; None for a level that was given."""
    level: float
    """The validation accuracy."""
    values: dict[int, float]
    """Seconds by seed, of the completed runs that reached it."""
    mean: float | None
    """Mean over seeds; None unless every completed run reached it."""

    @property
    def name(self) -> str:
        """Name of the number in tables for programs, such as ``seconds_to_90``."""
        if self.fraction is None:
            return f"seconds_to_accuracy_{self.level:g}"
        return f"seconds_to_{100 * self.fraction:g}"
