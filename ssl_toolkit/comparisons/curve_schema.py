"""The label curve in ``comparison.json``."""

from __future__ import annotations

from typing import Literal

from ssl_toolkit.comparisons.encodable import Text
from ssl_toolkit.config.label_counts import LabelKey
from ssl_toolkit.documents import Part


class Worth(Part):
    """The number of labels of another method that gives the same score."""

    method: Text
    labels: int
    """Number of labels of `method`."""
    other: Text
    equivalent: float | None
    """Number of labels of `other`; None outside of the measured range."""
    outside: Literal["", "below", "above"]
    interval: tuple[float | None, float | None] | None
    """95 % interval over seeds; an end outside of the range is None. None for one seed or equal
    resamples, and if it is outside as a whole."""


class Crossing(Part):
    """The number of labels above which a method is better than another, and below which worse."""

    method: Text
    other: Text
    labels: float
    interval: tuple[float | None, float | None] | None
    """As in `Worth`."""


class LabelCurve(Part):
    """A comparison over numbers of labels; its points are the scores of the rows."""

    key: LabelKey
    counts: tuple[int, ...]
    """Numbers of labels, ascending."""
    score: str
    """Name of the score that is compared."""
    worth: tuple[Worth, ...]
    crossings: tuple[Crossing, ...]
