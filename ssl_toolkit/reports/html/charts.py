"""Charts as SVG inside a page: no script, colors and dashes from its style sheet.

Every chart has a title and a description for screen readers. Colors are classes ``c0`` to ``c7``,
dashes ``d0`` to ``d4``; so a line is identified by its color, its dashes and its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ssl_toolkit.comparisons.schema import ScoreStats
from ssl_toolkit.reports.text_table import share
from ssl_toolkit.text import shorten

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

    steps: NDArray[np.int64] | NDArray[np.float64]
    """(P,) ascending; may be seconds, or numbers of labels."""
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
    return _element(
        '<svg class="swatch" width="36" height="10" aria-hidden="true">'
        '<path class="line {}" d="M1 5H35"/></svg>',
        style_of(index),
    )


def line_chart(identity: str, title: str, lines: Sequence[Line], unit: str = "step") -> Markup:
    """Draw lines over steps, each with a band from the smallest to the largest of its seeds.

    Args:
        identity: Id of the element, unique in the page.
        title: Title of the chart.
        lines: At least one, each with at least one point.
        unit: Name of a step.
    """
    named = 1 < len(lines) <= MOST_NAMED
    names = [shorten(line.name, _LONGEST) for line in lines]
    right = 16 + (_LETTER * max(map(len, names)) if named else 0)
    steps = np.concatenate([line.curve.steps for line in lines]).astype(np.float64)
    low = min(float(line.curve.low.min()) for line in lines)
    high = max(float(line.curve.high.max()) for line in lines)
    log = low > 0 and high / low >= _LOG_FROM
    if not log:
        gap = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = low - gap, high + gap
    across = Axis(0, max(1.0, float(steps.max())), 44, _WIDTH - right)
    up = Axis(low, high, _HEIGHT - 28, 8, log)
    parts = _grid(across, up, _HEIGHT)
    if len(lines) <= MOST_NAMED:
        parts += [_band(line, across, up) for line in lines if line.curve.seeds > 1]
    parts += [_line(line, across, up) for line in lines]
    if named:
        parts += _end_names(lines, names, up, _WIDTH - right + 5)
    ends = "; ".join(f"{n.name} ends at {number(float(n.curve.mean[-1]))}" for n in lines)
    end = '<text x="{}" y="{}" text-anchor="end">{}</text>'
    parts.append(_element(end, _WIDTH - right, _HEIGHT - 2, unit))
    if log:
        scale = '<text x="44" y="{}">values on a logarithmic scale</text>'
        parts.append(_element(scale, _HEIGHT - 2))
    title = f"{title} over {unit}s{', logarithmic scale' if log else ''}"
    return _svg(identity, _WIDTH, _HEIGHT, title, ends, parts)


def label_chart(identity: str, title: str, unit: str, lines: Sequence[Line]) -> Markup:
    """Draw scores over numbers of labels on a logarithmic axis, with an interval at each point.

    Args:
        identity: Id of the element, unique in the page.
        title: Title of the chart.
        unit: Name of the numbers.
        lines: At least one, each with at least one point; ``low`` and ``high`` are the ends of the
            intervals, in [0, 1].
    """
    named = 1 < len(lines) <= MOST_NAMED
    names = [shorten(line.name, _LONGEST) for line in lines]
    right = 24 + (_LETTER * max(map(len, names)) if named else 0)
    counts = np.unique(np.concatenate([line.curve.steps for line in lines]))
    low = min(float(line.curve.low.min()) for line in lines)
    high = max(float(line.curve.high.max()) for line in lines)
    gap = 0.04 * (high - low) or 0.05
    up = Axis(max(0.0, low - gap), min(1.0, high + gap), _HEIGHT - 28, 8)
    first, last = float(counts[0]), float(counts[-1])
    across = Axis(first, last if last > first else 2 * first, 60, _WIDTH - right, log=True)
    parts = _grid(across, up, _HEIGHT, [float(count) for count in counts])
    for k, line in enumerate(lines):
        # Apart by a few pixels, so that no interval hides another.
        shift = 5.0 * (k - (len(lines) - 1) / 2) if named else 0.0
        own = Axis(across.first, across.last, across.start + shift, across.end + shift, log=True)
        style, curve = style_of(line.index), line.curve
        points = zip(curve.steps, curve.mean, curve.low, curve.high, strict=True)
        for count, mean, lower, upper in points:
            x = own.at(float(count))
            if upper > lower:
                ends = up.at(float(lower)), up.at(float(upper))
                parts.append(_element('<path class="interval {}" d="M{} {}V{}"/>', style, x, *ends))
            place = '<circle class="dot {}" cx="{}" cy="{}" r="3.5">'
            dot = place + "<title>{}, {} {}: {}</title></circle>"
            text = (line.name, count, unit, share(float(mean)))
            parts.append(_element(dot, style, x, up.at(float(mean)), *text))
        parts.append(_line(line, own, up))
    if named:
        parts += _end_names(lines, names, up, _WIDTH - right + 18)
    end = '<text x="{}" y="{}" text-anchor="end">{}, logarithmic</text>'
    parts.append(_element(end, across.end, _HEIGHT - 2, unit))
    description = "; ".join(
        f"{line.name}: {share(float(line.curve.mean[0]))} with {line.curve.steps[0]}, "
        f"{share(float(line.curve.mean[-1]))} with {line.curve.steps[-1]}"
        for line in lines
    )
    return _svg(identity, _WIDTH, _HEIGHT, f"{title} over {unit}", description, parts)


def dot_plot(identity: str, title: str, rows: Sequence[tuple[str, int, ScoreStats]]) -> Markup:
    """Draw a dot for each seed, a tick at the mean, and the 95 % interval as a thin line.

    Args:
        identity: Id of the element, unique in the page.
        title: Title of the chart.
        rows: Name, index among all rows, and values in [0, 1].
    """
    names = [shorten(name, 30) for name, _, _ in rows]
    left = 14 + _LETTER * max(map(len, names))
    width, height = left + 420, 26.0 * len(rows) + 40
    ends = [v for _, _, s in rows for v in (*s.values.values(), *(s.interval or ()))]
    low, high = min(ends), max(ends)
    gap = 0.05 * (high - low) or 0.01
    across = Axis(low - gap, high + gap, left, width - 16)
    tick = (
        '<path class="grid" d="M{0} 6V{1}"/><text x="{0}" y="{2}" text-anchor="middle">{3}</text>'
    )
    parts = [
        _element(tick, across.at(t), height - 32, height - 17, number(t)) for t in across.ticks
    ]
    for k, (full, index, stats) in enumerate(rows):
        y, style = 20 + 26 * k, style_of(index)
        name = '<text x="{}" y="{}" text-anchor="end">{}</text>'
        parts.append(_element(name, left - 10, y + 4, names[k]))
        if stats.interval is not None:
            a, b = (across.at(end) for end in stats.interval)
            parts.append(_element('<path class="interval {}" d="M{} {}H{}"/>', style, a, y, b))
        dot = '<circle class="dot {}" cx="{}" cy="{}" r="4"><title>{}, seed {}: {}</title></circle>'
        for seed, value in stats.values.items():
            parts.append(_element(dot, style, across.at(value), y, full, seed, share(value)))
        if stats.count > 1:
            mean = across.at(stats.mean)
            parts.append(_element('<path class="mean" d="M{} {}v18"/>', mean, y - 9))
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


def _grid(
    across: Axis, up: Axis, height: float, ticks: Sequence[float] | None = None
) -> list[Markup]:
    left = '<path class="grid" d="M44 {0}H{1}"/><text x="38" y="{2}" text-anchor="end">{3}</text>'
    below = '<text x="{}" y="{}" text-anchor="middle">{}</text>'
    return [
        *(_element(left, up.at(t), across.end, up.at(t) + 4, number(t)) for t in up.ticks),
        *(
            _element(below, across.at(t), height - 14, number(t))
            for t in (across.ticks if ticks is None else ticks)
        ),
        _element('<path class="axis" d="M44 {}H{}"/>', height - 28, across.end),
    ]


def _line(line: Line, across: Axis, up: Axis) -> Markup:
    curve = line.curve
    path = _path(across(curve.steps.astype(np.float64)), up(curve.mean))
    seeds = f"mean of {curve.seeds} seeds" if curve.seeds > 1 else "one run"
    # A single point has no length; a round cap makes it a dot.
    path += "h0" if len(curve.steps) == 1 else ""
    element = '<path class="line {}" d="{}"><title>{}, {}</title></path>'
    return _element(element, style_of(line.index), path, line.name, seeds)


def _band(line: Line, across: Axis, up: Axis) -> Markup:
    curve = line.curve
    x = across(curve.steps.astype(np.float64))
    outline = np.concatenate([x, x[::-1]]), np.concatenate([up(curve.high), up(curve.low)[::-1]])
    return _element('<path class="band {}" d="{}z"/>', style_of(line.index), _path(*outline))


def _path(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """Return a path in relative steps of tenths: about half as long as in absolute coordinates."""
    points = np.round(np.stack([x, y], axis=1) * 10).astype(int)
    steps = [(_tenth(dx), _tenth(dy)) for dx, dy in np.diff(points, axis=0)]
    moves = "".join(f"l{dx}{'' if dy.startswith('-') else ' '}{dy}" for dx, dy in steps)
    return f"M{_tenth(points[0, 0])} {_tenth(points[0, 1])}{moves}"


def _tenth(value: int) -> str:
    return re.sub(r"^(-?)0\.", r"\1.", f"{value / 10:g}")


def _end_names(lines: Sequence[Line], names: Sequence[str], up: Axis, x: float) -> list[Markup]:
    """Draw names at the ends of the lines, moved apart if they would overlap."""
    targets = sorted((up.at(float(n.curve.mean[-1])), k) for k, n in enumerate(lines))
    heights: list[float] = []
    for y, _ in targets:
        heights.append(max(y, heights[-1] + 13 if heights else 14.0))
    lowest = up.start - 6
    for k in range(len(heights) - 1, -1, -1):
        heights[k] = min(heights[k], lowest)
        lowest = heights[k] - 13
    name = '<text class="name {}" x="{}" y="{}">{}</text>'
    return [
        _element(name, style_of(lines[k].index), x, y + 4, names[k])
        for y, (_, k) in zip(heights, targets, strict=True)
    ]


def _svg(
    identity: str,
    width: float,
    height: float,
    title: str,
    description: str,
    parts: Sequence[Markup],
) -> Markup:
    return _element(
        '<svg class="chart" viewBox="0 0 {1} {2}" role="img" aria-labelledby="{0}-t {0}-d">'
        '<title id="{0}-t">{3}</title><desc id="{0}-d">{4}</desc>{5}</svg>',
        *(identity, width, height, title, description, Markup("").join(parts)),
    )


def _element(template: str, *values: object) -> Markup:
    """Fill a template with escaped texts, and with numbers to one decimal."""
    texts = (
        f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value for value in values
    )
    return Markup(template).format(*texts)
