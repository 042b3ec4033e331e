"""Charts as SVG inside a page: no script, colors and dashes from its style sheet.

Every chart has a title and a description for screen readers. Colors are classes ``c0`` to ``c7``,
dashes ``d0`` to ``d4``; so a line is identified by its color, its dashes and its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ssl_toolkit.comparisons.schema import ScoreStats
from ssl_toolkit.reports.tables import share

MOST_NAMED = 8
"""Rows up to which lines have names and bands; beyond, there is the legend only."""

_WIDTH, _HEIGHT = 480.0, 236.0
_LETTER = 6.9
"""Upper estimate of the width of a letter of the 11 px fonts."""
_LONGEST = 20
_LOG_FROM = 300.0


@dataclass(frozen=True)
class Curve:
    """A metric of one row; each point is over the seeds that have a value there."""

    steps: NDArray[np.int64]
    """(P,) ascending."""
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    """The smallest of the seeds."""
    high: NDArray[np.float64]
    """The largest of the seeds."""
    seeds: int
    """Number of seeds that have any value."""


@dataclass(frozen=True)
class Line:
    """A curve with its index among the rows, which determines color and dashes."""

    name: str
    index: int
    curve: Curve


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from values to coordinates, with its ticks."""

    first: float
    last: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coordinates of values."""
        first, last = self.first, self.last
        if self.log:
            first, last, values = math.log10(first), math.log10(last), np.log10(values)
        share = (values - first) / (last - first)
        return self.start + share * (self.end - self.start)

    def at(self, value: float) -> float:
        """Return the coordinate of a value."""
        return float(self(np.array([value]))[0])

    @property
    def ticks(self) -> list[float]:
        """Return about four round values."""
        if self.log:
            first, last = math.ceil(math.log10(self.first)), math.floor(math.log10(self.last))
            every = max(1, math.ceil((last - first) / 5))
            return [10.0**power for power in range(first, last + 1, every)]
        rough = (self.last - self.first) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= 0.9 * rough)
        first = math.ceil(self.first / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.last / step + 1e-9) + 1)]


def style_of(index: int) -> str:
    """Return the CSS classes of the row at an index."""
    return f"c{index % 8} d{(index + index // 8) % 5}"


def swatch(index: int) -> Markup:
    """Draw a short piece of a row's line, for a legend."""
    return Markup(
        '<svg class="swatch" width="36" height="10" aria-hidden="true">'
        '<path class="line {}" d="M1 5H35"/></svg>'
    ).format(style_of(index))


def line_chart(identity: str, title: str, lines: Sequence[Line]) -> Markup:
    """Draw lines over steps, each with a band from the smallest to the largest of its seeds.

    Args:
        identity: Id of the element, unique in the page.
        title: Title of the chart.
        lines: At least one, each with at least one point.
    """
    named = 1 < len(lines) <= MOST_NAMED
    names = [_short(line.name) for line in lines]
    right = 16 + (_LETTER * max(map(len, names)) if named else 0)
    width, height = _WIDTH, _HEIGHT
    steps = np.concatenate([line.curve.steps for line in lines]).astype(np.float64)
    low = min(float(line.curve.low.min()) for line in lines)
    high = max(float(line.curve.high.max()) for line in lines)
    log = low > 0 and high / low >= _LOG_FROM
    if not log:
        gap = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = low - gap, high + gap
    across = Axis(0, max(1.0, float(steps.max())), 44, width - right)
    up = Axis(low, high, height - 28, 8, log)
    parts = [_grid(across, up, height)]
    if len(lines) <= MOST_NAMED:
        parts += [_band(line, across, up) for line in lines if line.curve.seeds > 1]
    parts += [_line(line, across, up) for line in lines]
    if named:
        parts.append(_end_names(lines, names, up, width - right + 5))
    ends = "; ".join(f"{n.name} ends at {number(float(n.curve.mean[-1]))}" for n in lines)
    parts.append(
        Markup('<text x="{}" y="{}" text-anchor="end">step</text>').format(
            _fixed(width - right), height - 2
        )
    )
    scale = ", logarithmic scale" if log else ""
    if log:
        parts.append(
            Markup('<text x="44" y="{}">values on a logarithmic scale</text>').format(height - 2)
        )
    return _svg(identity, width, height, f"{title} over steps{scale}", ends, parts)


def dot_plot(identity: str, title: str, rows: Sequence[tuple[str, int, ScoreStats]]) -> Markup:
    """Draw a dot for each seed, a tick at the mean, and the 95 % interval as a thin line.

    Args:
        identity: Id of the element, unique in the page.
        title: Title of the chart.
        rows: Name, index among all rows, and values in [0, 1].
    """
    names = [_short(name, 30) for name, _, _ in rows]
    left = 14 + _LETTER * max(map(len, names))
    width, height = left + 420, 26.0 * len(rows) + 40
    ends = [v for _, _, s in rows for v in (*s.values.values(), *(s.interval or ()))]
    low, high = min(ends), max(ends)
    gap = 0.05 * (high - low) or 0.01
    across = Axis(low - gap, high + gap, left, width - 16)
    parts = [
        Markup(
            '<path class="grid" d="M{0} 6V{1}"/><text x="{0}" y="{2}" text-anchor="middle">{3}'
            "</text>"
        ).format(_fixed(across.at(t)), height - 32, height - 17, number(t))
        for t in across.ticks
    ]
    for k, (full, index, stats) in enumerate(rows):
        y = 20 + 26 * k
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(
                _fixed(left - 10), y + 4, names[k]
            )
        )
        if stats.interval is not None:
            a, b = (across.at(end) for end in stats.interval)
            parts.append(
                Markup('<path class="interval {}" d="M{} {}H{}"/>').format(
                    style_of(index), _fixed(a), y, _fixed(b)
                )
            )
        for seed, value in stats.values.items():
            parts.append(
                Markup(
                    '<circle class="dot {}" cx="{}" cy="{}" r="4"><title>{}, seed {}: {}</title>'
                    "</circle>"
                ).format(style_of(index), _fixed(across.at(value)), y, full, seed, share(value))
            )
        if stats.count > 1:
            parts.append(
                Markup('<path class="mean" d="M{} {}v18"/>').format(
                    _fixed(across.at(stats.mean)), y - 9
                )
            )
    description = "; ".join(f"{name}: {share(stats.mean)}" for name, _, stats in rows)
    return _svg(identity, width, height, title, description, parts)


def number(value: float) -> str:
    """Format a number with up to four significant digits."""
    if value == 0:
        return "0"
    if abs(value) >= 1e7 or abs(value) < 1e-3:
        return f"{value:.2g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _grid(across: Axis, up: Axis, height: float) -> Markup:
    parts = [
        Markup(
            '<path class="grid" d="M44 {0}H{1}"/><text x="38" y="{2}" text-anchor="end">{3}</text>'
        ).format(_fixed(up.at(t)), _fixed(across.end), _fixed(up.at(t) + 4), number(t))
        for t in up.ticks
    ]
    parts += [
        Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            _fixed(across.at(t)), height - 14, number(t)
        )
        for t in across.ticks
    ]
    parts.append(
        Markup('<path class="axis" d="M44 {}H{}"/>').format(height - 28, _fixed(across.end))
    )
    return Markup("").join(parts)


def _line(line: Line, across: Axis, up: Axis) -> Markup:
    curve = line.curve
    x, y = across(curve.steps.astype(np.float64)), up(curve.mean)
    seeds = f"mean of {curve.seeds} seeds" if curve.seeds > 1 else "one run"
    # A single point has no length; a round cap makes it a dot.
    path = _path(x, y) if len(x) > 1 else f"{_path(x, y)}h0"
    return Markup('<path class="line {}" d="{}"><title>{}, {}</title></path>').format(
        style_of(line.index), path, line.name, seeds
    )


def _band(line: Line, across: Axis, up: Axis) -> Markup:
    curve = line.curve
    x = across(curve.steps.astype(np.float64))
    outline = np.concatenate([x, x[::-1]]), np.concatenate([up(curve.high), up(curve.low)[::-1]])
    return Markup('<path class="band {}" d="{}z"/>').format(style_of(line.index), _path(*outline))


def _path(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """Return a path in relative steps of tenths: about half as long as in absolute coordinates."""
    points = np.round(np.stack([x, y], axis=1) * 10).astype(int)
    steps = np.diff(points, axis=0)
    steps_text = "".join(f"l{_tenth(dx)}{_joined(_tenth(dy))}" for dx, dy in steps)
    return f"M{_tenth(points[0, 0])} {_tenth(points[0, 1])}{steps_text}"


def _tenth(value: int) -> str:
    sign, value = ("-" if value < 0 else ""), abs(int(value))
    whole, rest = divmod(value, 10)
    if not rest:
        return f"{sign}{whole}"
    return f"{sign}{whole or ''}.{rest}"


def _joined(text: str) -> str:
    return text if text.startswith("-") else f" {text}"


def _end_names(lines: Sequence[Line], names: Sequence[str], up: Axis, x: float) -> Markup:
    """Draw names at the ends of the lines, moved apart if they would overlap."""
    wanted = sorted((up.at(float(n.curve.mean[-1])), k) for k, n in enumerate(lines))
    heights: list[float] = []
    for y, _ in wanted:
        heights.append(max(y, heights[-1] + 13 if heights else 14.0))
    lowest = up.start - 6
    for k in range(len(heights) - 1, -1, -1):
        heights[k] = min(heights[k], lowest)
        lowest = heights[k] - 13
    return Markup("").join(
        Markup('<text class="name {}" x="{}" y="{}">{}</text>').format(
            style_of(lines[k].index), _fixed(x), _fixed(y + 4), names[k]
        )
        for y, (_, k) in zip(heights, wanted, strict=True)
    )


def _svg(
    identity: str,
    width: float,
    height: float,
    title: str,
    description: str,
    parts: Sequence[Markup],
) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labeledby="{}-t {}-d">'
        '<title id="{}-t">{}</title><desc id="{}-d">{}</desc>{}</svg>'
    ).format(
        _fixed(width), _fixed(height), *(identity,) * 3, title, identity, description,
        Markup("").join(parts),
    )  # fmt: skip


def _short(name: str, longest: int = _LONGEST) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _fixed(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
