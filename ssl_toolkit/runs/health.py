"""Detect failures of training from the rows of metrics, and describe them.

Only rows with an evaluation count. A state *lasts* if it holds in each of them over at least a
fifth of the steps, and in at least three; a collapse is reported earlier, since every later step is
lost. Two states raise no alarm: a supervised term that falls to a thousandth of the others once the
few labels are learned, as in good runs, and a term of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ssl_toolkit.engine import logged_metrics as logged

Row = Mapping[str, float]

LONG = 0.2
"""Minimum share of the steps that a state must last."""
ROWS = 3
"""Minimum number of evaluations that a state must last."""
COVERAGE = 0.005
"""Coverage below which unlabeled images contribute nothing to training."""
SHARE, SHIFT = 0.6, 0.3
"""Share of the pseudo labels in one class, and distance of their distribution from the known class
shares (total variation, 0 to 1): only both together raise an alarm, since binary and long-tailed
data have a large class in good runs too."""
ESTIMATED_SHIFT = 0.45
"""`SHIFT` for class shares that a probe estimates; if one class is large, its error reaches 0.4."""
NEARLY_ALL = 0.9
"""`SHARE` if the class shares are unknown."""
FEW = 0.05
"""Coverage below which all pseudo labels may be of one easy class, without an alarm."""
FAST, FAST_SHARE, FAST_SHIFT = 0.25, 0.5, 0.45
"""Coverage, share and shift that raise the alarm after two consecutive evaluations."""
LARGE, SMALL = 1e3, 1e-6
"""Bounds of the ratio of a weighted term to the supervised one."""
LEARNED = 0.1
"""Supervised term (a cross-entropy in nats) below which the labels are learned."""
DROP, LARGE_DROP = 0.1, 0.25
"""Difference to the best accuracy that is a collapse: in two consecutive evaluations, or in one."""

_ACCURACIES = {
    logged.VALIDATION_ACCURACY.name: "validation accuracy",
    logged.LABELED_ACCURACY.name: "accuracy on the labeled training images",
    logged.VALIDATION_MAP.name: "validation mAP",
    logged.LABELED_MAP.name: "mAP on the labeled training images",
}
_COVERAGE = logged.COVERAGE.name
_SHARE = logged.LARGEST_CLASS_SHARE.name
_SHIFT = logged.SHIFT.name
_ESTIMATED_SHIFT = logged.ESTIMATED_SHIFT.name
_WEIGHTED = logged.WEIGHTED_TERM
_SUPERVISED = logged.weighted_term("supervised").name


def is_evaluation(row: Row) -> bool:
    """Return True if a row of metrics counts for the alarms."""
    return any(key in row for key in _ACCURACIES)


def alarms(rows: Sequence[Row], *, steps: int) -> list[str]:
    """Return the alarms of a run, each once, as of the first evaluation at which it holds.

    Further rows add alarms, but do not change those of the first rows.

    Args:
        rows: as in ``metrics.jsonl``, in order; those without an evaluation are ignored.
        steps: of the whole run.

    Returns:
        A sentence per alarm: the observation, its steps, and the settings to change.
    """
    evaluations = [row for row in rows if is_evaluation(row)]
    problems = _collapses(evaluations, steps)
    for holds, describe in _conditions(evaluations):
        stretch = _first_long(evaluations, holds, LONG * steps)
        if stretch:
            problems.append((stretch[-1]["step"], describe(stretch)))
    return [text for _, text in sorted(problems, key=lambda problem: problem[0])]


def collapse(rows: Sequence[Row], *, steps: int) -> str:
    """Return the first of the `alarms` after which training is lost; empty without one."""
    problems = _collapses([row for row in rows if is_evaluation(row)], steps)
    return min(problems, key=lambda problem: problem[0])[1] if problems else ""


def _collapses(rows: Sequence[Row], steps: int) -> list[tuple[float, str]]:
    fast = (list(two) for two in pairwise(rows) if all(map(_one_class_rises, two)))
    lasting = _first_long(rows, _one_class_dominates, LONG * steps)
    problems = _drops(rows)
    if stretches := [stretch for stretch in (next(fast, None), lasting) if stretch]:
        first = min(stretches, key=lambda stretch: stretch[-1]["step"])
        problems.append((first[-1]["step"], _describe_dominance(first)))
    return problems


def _first_long(
    rows: Sequence[Row], holds: Callable[[Row], bool], length: float
) -> Sequence[Row] | None:
    """Return the first consecutive rows for which a condition lasts."""
    start = 0
    for i, row in enumerate(rows):
        if not holds(row):
            start = i + 1
        elif i + 1 - start >= ROWS and row["step"] - rows[start]["step"] >= length:
            return rows[start : i + 1]
    return None


Condition = tuple[Callable[[Row], bool], Callable[[Sequence[Row]], str]]


def _conditions(rows: Sequence[Row]) -> list[Condition]:
    conditions: list[Condition] = [
        (lambda row: row.get(_COVERAGE, 1.0) < COVERAGE, _nothing_passes)
    ]
    names = dict.fromkeys(
        key.removeprefix(_WEIGHTED)
        for row in rows
        for key in row
        if key.startswith(_WEIGHTED) and key != _SUPERVISED
    )
    for name in names:
        conditions += [_outweighs(name), _vanishes(name)]
    return conditions


def _nothing_passes(rows: Sequence[Row]) -> str:
    most = max(row[_COVERAGE] for row in rows)
    return (
        f"{_span(rows)} at most {most:.2%} of the unlabeled images passed the threshold, so "
        "they had no effect; try a lower confidence_threshold, more labels or more steps"
    )


def _one_class_dominates(row: Row) -> bool:
    return _unlike_pool(row, FEW, SHARE, SHIFT)


def _unlike_pool(row: Row, coverage: float, most: float, shift: float) -> bool:
    """Return True if the distribution of the pseudo labels differs from that of the pool.

    Args:
        row: of an evaluation.
        coverage: minimum share of unlabeled images with a pseudo label.
        most: share of the pseudo labels that the largest class must exceed.
        shift: distance from the known class shares that must be exceeded.
    """
    share = row.get(_SHARE, 0.0)
    if row.get(_COVERAGE, 1.0) < coverage:
        return False
    if (known := row.get(_SHIFT)) is not None:
        return share > most and known > shift
    estimated = row.get(_ESTIMATED_SHIFT, 0.0)
    return share > NEARLY_ALL or (share > most and estimated > ESTIMATED_SHIFT)


def _one_class_rises(row: Row) -> bool:
    return _unlike_pool(row, FAST, FAST_SHARE, FAST_SHIFT)


def _describe_dominance(rows: Sequence[Row]) -> str:
    least = min(row[_SHARE] for row in rows)
    text = f"{_span(rows)} one class had at least {least:.0%} of the pseudo labels"
    for key, shares in (
        (_SHIFT, "those of the pool"),
        (_ESTIMATED_SHIFT, "those that the probe expects"),
    ):
        if all(key in row for row in rows):
            shift = min(row[key] for row in rows)
            text += f", and their shares differed from {shares} by at least {shift:.2f} (0 to 1)"
    return f"{text}; {_remedy(rows[-1])}"


def _remedy(row: Row) -> str:
    """Return the likely cause, the largest unsupervised term, and the settings to change."""
    others = "more labels of each class, a higher confidence_threshold or a lower --lr"
    weighted = {
        key.removeprefix(_WEIGHTED): value
        for key, value in row.items()
        if key.startswith(_WEIGHTED) and key != _SUPERVISED and value > 0
    }
    if not weighted:
        return f"try {others}"
    largest = max(weighted, key=lambda name: weighted[name])
    return (
        f"the largest loss term was {largest!r} (weighted {weighted[largest]:.2g}, the "
        f"supervised one {row.get(_SUPERVISED, 0.0):.2g}): wrong pseudo labels reinforce "
        f"themselves through it; try a lower {largest}_weight, then {others}"
    )


def _outweighs(name: str) -> Condition:
    """Return the condition that a term dominates the gradient before the labels are learned."""
    key = _WEIGHTED + name

    def holds(row: Row) -> bool:
        supervised = row.get(_SUPERVISED, 0.0)
        return supervised >= LEARNED and row.get(key, 0.0) > LARGE * supervised

    def describe(rows: Sequence[Row]) -> str:
        least = min(row[key] / row[_SUPERVISED] for row in rows)
        lowest = min(row[_SUPERVISED] for row in rows)
        return (
            f"{_span(rows)} the weighted loss term {name!r} was at least {least:,.0f} times the "
            f"supervised one, which was at least {lowest:.4f}: the labels are not learned; "
            f"try a lower {name}_weight or a lower --lr"
        )

    return holds, describe


def _vanishes(name: str) -> Condition:
    """Return the condition that a term has no effect despite its weight and the coverage."""
    key = _WEIGHTED + name

    def holds(row: Row) -> bool:
        value = row.get(key)
        if value is None or row.get(_COVERAGE, 1.0) < COVERAGE:
            return False
        switched_off = value == 0 and row.get(logged.loss_term(name).name, 0.0) != 0
        supervised = row.get(_SUPERVISED, 0.0)
        return not switched_off and supervised > 0 and value <= SMALL * supervised

    def describe(rows: Sequence[Row]) -> str:
        most = max(row[key] / row[_SUPERVISED] for row in rows)
        return (
            f"{_span(rows)} the weighted loss term {name!r} was at most {most:.1g} times the "
            f"supervised one, so it had no effect; try a higher {name}_weight or lower thresholds"
        )

    return holds, describe


def _drops(rows: Sequence[Row]) -> list[tuple[float, str]]:
    """Return the first certain drop of each accuracy.

    A drop is certain if it is large, if the pseudo labels have shifted as well, or if the next
    evaluation confirms it.
    """
    drops = []
    for key, name in _ACCURACIES.items():
        best: Row = {key: -1.0}
        low: list[Row] = []
        for row in (row for row in rows if key in row):
            if row[key] > best[key]:
                best = row
            low = [*low, row] if row[key] < best[key] - DROP else []
            certain = row[key] < best[key] - LARGE_DROP or _unlike_pool(row, FAST, 0.0, FAST_SHIFT)
            if len(low) == 2 or (low and certain):
                to = " and ".join(f"{r[key]:.4f} at step {r['step']:.0f}" for r in low)
                text = (
                    f"the {name} fell from {best[key]:.4f} at step {best['step']:.0f} to {to}; "
                    f"{_remedy(row)}"
                )
                drops.append((row["step"], text))
                break
    return drops


def _span(rows: Sequence[Row]) -> str:
    return f"from step {rows[0]['step']:.0f} to {rows[-1]['step']:.0f}"
