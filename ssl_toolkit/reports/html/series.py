"""Metrics over steps: read from the logs of runs, thinned, and joined over the seeds of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.comparisons.types import ComparedRun, Comparison, Variant
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import last_step

POINTS = 200
"""Most points of a curve."""

_OTHER = ("step", "lr", "seconds", "images_per_second")

Values = Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """A metric of one row; each point is over the seeds that have a value there."""

    steps: NDArray[np.int64]
    """(P,) ascending, at most `POINTS`."""
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    """The smallest of the seeds."""
    high: NDArray[np.float64]
    """The largest of the seeds."""
    seeds: int
    """Seeds that have any value."""


@dataclass(frozen=True)
class Thinned:
    """A metric of one run over the bins of a common grid: (POINTS,) sums, counts, last steps."""

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]
    steps: NDArray[np.int64]


def shown_members(row: Variant) -> tuple[ComparedRun, ...]:
    """The members whose curves are drawn: the completed ones, or all where none is completed."""
    return tuple(member for member in row.runs if member.completed) or row.runs


def grid_end(comparison: Comparison) -> int:
    """The last step that any drawn run logged."""
    members = [member for row in comparison.rows for member in shown_members(row)]
    return max((last_step(RunFolder(m.folder).metrics) for m in members), default=0)


def thin(rows: Sequence[Values], end: int) -> dict[str, Thinned]:
    """Average neighboring values so that each metric has at most `POINTS`.

    Args:
        rows: of one run.
        end: last step of the grid, whose equal bins every run shares.
    """
    # Lists, not arrays: reading and writing single items of these is several times as fast.
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[int]] = {}
    steps: dict[str, list[int]] = {}
    for row in rows:
        step = int(row["step"])
        place = min(POINTS - 1, max(0, math.ceil(step * POINTS / max(end, 1)) - 1))
        for name, value in row.items():
            if name in _OTHER:
                continue
            if name not in sums:
                sums[name], counts[name], steps[name] = [0.0] * POINTS, [0] * POINTS, [0] * POINTS
            sums[name][place] += value
            counts[name][place] += 1
            steps[name][place] = step
    return {
        name: Thinned(np.array(own), np.array(counts[name]), np.array(steps[name]))
        for name, own in sums.items()
    }


def join(runs: Sequence[Mapping[str, Thinned]]) -> dict[str, Curve]:
    """Join the runs of a row, by metric."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: _join([run[name] for run in runs if name in run]) for name in names}


def _join(runs: Sequence[Thinned]) -> Curve:
    counts = np.stack([run.counts for run in runs])
    values = np.stack([run.sums for run in runs]) / np.maximum(counts, 1)
    there = counts > 0
    number = there.sum(axis=0)
    kept = number > 0
    mean = np.where(there, values, 0).sum(axis=0)[kept] / number[kept]
    low = np.where(there, values, np.inf).min(axis=0)[kept]
    high = np.where(there, values, -np.inf).max(axis=0)[kept]
    steps = np.stack([run.steps for run in runs]).max(axis=0)[kept]
    return Curve(steps, mean, low, high, len(runs))
