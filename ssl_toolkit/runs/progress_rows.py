"""The rows of a run on the terminal: aligned columns, at most 80 characters wide."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from textwrap import wrap

from ssl_toolkit.engine import logged_metrics as logged

WIDTH = 80
"""No row is wider, unless the number of steps has more than 13 digits."""


@dataclass(frozen=True)
class _Column:
    head: str
    width: int
    decimals: int = 4


_HARD_SPACE = "\N{NO-BREAK SPACE}"
_STEP, _BEST, _TIME_LEFT = "step", "best", "time left"
_COLUMNS = {
    _STEP: _Column("step", 4, 0),
    logged.LOSS.name: _Column("loss", 8),
    logged.VALIDATION_ACCURACY.name: _Column("val acc", 7),
    logged.LABELED_ACCURACY.name: _Column("train acc", 9),
    _BEST: _Column("best", 6),
    logged.COVERAGE.name: _Column("coverage", 8),
    logged.PSEUDO_LABEL_ACCURACY.name: _Column("pl acc", 6),
    logged.IMAGES_PER_SECOND.name: _Column("images/s", 8, 0),
    _TIME_LEFT: _Column("time left", 9),
}
"""By metric, in the order of the terminal."""


class ProgressRows:
    """Formats rows of metrics under one header, with the columns that the run has.

    Args:
        steps: of the whole run.
        expected: names of metrics that the run has, though its first row may lack them. The
            accuracy of pseudo labels is expected only where there is a coverage.
    """

    def __init__(self, steps: int, expected: Collection[str] = ()) -> None:
        self._step_width = max(_COLUMNS[_STEP].width, len(str(steps)))
        self._expected = set(expected)
        self._seen: set[str] = set()
        self._shown: list[str] = []

    @property
    def started(self) -> bool:
        """True once there is a header."""
        return bool(self._shown)

    def header(self, row: Mapping[str, float]) -> str:
        """Return the header if the row needs one: the first row, or one with a new column."""
        self._seen |= row.keys()
        names = self._seen | self._expected
        if logged.COVERAGE.name not in self._seen:
            names.discard(logged.PSEUDO_LABEL_ACCURACY.name)
        if logged.VALIDATION_ACCURACY.name in names:
            names.add(_BEST)
        shown = [name for name in _COLUMNS if name in {*names, _STEP, _TIME_LEFT}]
        if shown == self._shown:
            return ""
        self._shown = shown
        return self._line({name: _COLUMNS[name].head for name in shown})

    def line(self, row: Mapping[str, float], best: float | None, seconds_left: float) -> str:
        """Format a row under the last header; a missing value leaves its cell empty."""
        values = {_BEST: best, **row}
        cells = {_TIME_LEFT: clock(seconds_left)}
        for name in self._shown:
            if (value := values.get(name)) is not None:
                cells[name] = fitted(value, self._width(name), _COLUMNS[name].decimals)
        return self._line(cells)

    def others(self, row: Mapping[str, float]) -> list[str]:
        """Return the metrics without a column, as lines of the same width."""
        parts = [
            f"{name.removeprefix(logged.TRAIN)} {value:.4g}"
            for name, value in row.items()
            if name not in _COLUMNS and name != "seconds"
        ]
        # The spaces within a part must not be where a line is broken.
        text = "  ".join(part.replace(" ", _HARD_SPACE) for part in parts)
        indent = " " * (self._step_width + 2)
        lines = wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
        return [line.replace(_HARD_SPACE, " ") for line in lines]

    def _width(self, name: str) -> int:
        return self._step_width if name == _STEP else _COLUMNS[name].width

    def _line(self, cells: Mapping[str, str]) -> str:
        return "  ".join(cells.get(name, "").rjust(self._width(name)) for name in self._shown)


def fitted(value: float, width: int, decimals: int) -> str:
    """Format a number with the decimals that fit.

    >>> fitted(0.98765, 6, 4), fitted(-123456.789, 7, 4), fitted(-1.25e10, 8, 4)
    ('0.9877', '-123457', '-1.2e+10')
    """
    fixed = (f"{value:.{digits}f}" for digits in range(decimals, -1, -1))
    scientific = (f"{value:.{digits}e}" for digits in (1, 0))
    texts = [*fixed, *scientific]
    return next((text for text in texts if len(text) <= width), texts[-1])


def clock(seconds: float) -> str:
    """Format a time as h:mm:ss, or in days from 100 hours on.

    >>> clock(3725), clock(1e6)
    ('1:02:05', '12 d')
    """
    if not math.isfinite(seconds):
        return ""
    hours, rest = divmod(max(0, round(seconds)), 3600)
    if hours < 100:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{fitted(hours / 24, 7, 0)} d"
