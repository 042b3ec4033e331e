"""Alarms in words where training goes wrong, from the rows of metrics alone.

Only rows of evaluations count. *For long* means in each of them over at least a fifth of the
steps, and in at least three; a collapse is told sooner, as every step after it is lost. What is no
alarm: that the supervised term falls to a thousandth of the others once the few labels are
learned, as it does in good runs; and a term of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ssl_toolkit.engine import logged_metrics as logged

Row = Mapping[str, float]

LONG = 0.2
"""Share of the steps that a state must last."""
ROWS = 3
"""Evaluations that a state must last."""
COVERAGE = 0.005
"""Below this share of unlabeled images above the threshold, they teach nothing."""
SHARE, SHIFT = 0.6, 0.3
"""One class has more than `SHARE` of the pseudo labels, and their distribution is further than
`SHIFT` from the known class shares (total variation distance, 0 to 1): data of two classes or with
a long tail has a large class by right."""
ESTIMATED_SHIFT = 0.45
"""The same from shares that a probe estimates: where one class is large they are off by 0.4."""
NEARLY_ALL = 0.9
"""Where the class shares are not known, one class may have up to so many pseudo labels by right."""
FEW = 0.05
"""Below this coverage the few pseudo labels may well be of one easy class."""
RUSH, RUSH_SHARE, RUSH_SHIFT = 0.25, 0.5, 0.45
"""At this coverage, a share and a shift beyond these in two evaluations in a row are enough."""
LARGE, SMALL = 1e3, 1e-6
"""A weighted term over the supervised one: beyond these it is out of proportion."""
LEARNED = 0.1
"""A supervised term (a cross-entropy in nats) below this has been learned."""
FALL, PLUNGE = 0.1, 0.25
"""Accuracy lost against the best: so much in two evaluations in a row, or in one, is a collapse."""

_ACCURACIES = {
    logged.VALIDATION_ACCURACY.name: "validation accuracy",
    logged.LABELED_ACCURACY.name: "accuracy on the labeled training images",
}
_COVERAGE = logged.COVERAGE.name
_SHARE = logged.LARGEST_CLASS_SHARE.name
_SHIFT = logged.SHIFT.name
_ESTIMATED_SHIFT = logged.ESTIMATED_SHIFT.name
_WEIGHTED = logged.WEIGHTED_TERM
_SUPERVISED = logged.weighted_term("supervised").name


def is_evaluation(row: Row) -> bool:
    """Whether a row of metrics counts for the alarms."""
    return any(key in row for key in _ACCURACIES)


def alarms(rows: Sequence[Row], *, steps: int) -> list[str]:
    """What went wrong, each told once, in the words of the evaluation where it first held.

    Rows that follow later only add alarms: those of the first rows stay as they are.

    Args:
        rows: as in ``metrics.jsonl``, in order; those without an evaluation are passed over.
        steps: of the whole run.

    Returns:
        A sentence each: what was seen, since which step, and what to try.
    """
    evaluations = [row for row in rows if is_evaluation(row)]
    told = _collapses(evaluations, steps)
    for holds, tell in _conditions(evaluations):
        stretch = _first_long(evaluations, holds, LONG * steps)
        if stretch:
            told.append((stretch[-1]["step"], tell(stretch)))
    return [text for _, text in sorted(told, key=lambda alarm: alarm[0])]


def collapse(rows: Sequence[Row], *, steps: int) -> str:
    """The first of the `alarms` after which training is lost; empty while there is none."""
    told = _collapses([row for row in rows if is_evaluation(row)], steps)
    return min(told, key=lambda alarm: alarm[0])[1] if told else ""


def _collapses(rows: Sequence[Row], steps: int) -> list[tuple[float, str]]:
    reign = _first_long(rows, _one_class_reigns, LONG * steps)
    rush = next((list(two) for two in pairwise(rows) if all(map(_one_class_rushes, two))), None)
    stretches = [stretch for stretch in (rush, reign) if stretch]
    told = _falls(rows)
    if stretches:
        first = min(stretches, key=lambda stretch: stretch[-1]["step"])
        told.append((first[-1]["step"], _tell_reign(first)))
    return told


def _first_long(
    rows: Sequence[Row], holds: Callable[[Row], bool], length: float
) -> Sequence[Row] | None:
    """The first rows in a row that hold for long."""
    start = 0
    for i, row in enumerate(rows):
        if not holds(row):
            start = i + 1
        elif i + 1 - start >= ROWS and row["step"] - rows[start]["step"] >= length:
            return rows[start : i + 1]
    return None


Condition = tuple[Callable[[Row], bool], Callable[[Sequence[Row]], str]]


def _conditions(rows: Sequence[Row]) -> list[Condition]:
    found: list[Condition] = [
        (lambda row: row.get(_COVERAGE, 1.0) < COVERAGE, _nothing_passes),
    ]
    names = dict.fromkeys(
        key.removeprefix(_WEIGHTED)
        for row in rows
        for key in row
        if key.startswith(_WEIGHTED) and key != _SUPERVISED
    )
    for name in names:
        found += [_outweighs(name), _vanishes(name)]
    return found


def _nothing_passes(rows: Sequence[Row]) -> str:
    most = max(row[_COVERAGE] for row in rows)
    return (
        f"{_span(rows)} at most {most:.2%} of the unlabeled images passed the threshold, so "
        "they taught nothing; try a lower confidence_threshold, more labels or more steps"
    )


def _one_class_reigns(row: Row) -> bool:
    return row.get(_COVERAGE, 1.0) >= FEW and _unlike_pool(row, SHARE, SHIFT)


def _one_class_rushes(row: Row) -> bool:
    return row.get(_COVERAGE, 1.0) >= RUSH and _unlike_pool(row, RUSH_SHARE, RUSH_SHIFT)


def _labels_shift(row: Row) -> bool:
    return row.get(_COVERAGE, 1.0) >= RUSH and _unlike_pool(row, 0.0, RUSH_SHIFT)


def _unlike_pool(row: Row, most: float, shift: float) -> bool:
    """Whether pseudo labels are spread as those of the pool can't be, as far as that is known.

    Args:
        row: of an evaluation.
        most: share of the pseudo labels that one class must have more than.
        shift: distance from known class shares that they must have more than.
    """
    share = row.get(_SHARE, 0.0)
    if (known := row.get(_SHIFT)) is not None:
        return share > most and known > shift
    estimated = row.get(_ESTIMATED_SHIFT, 0.0)
    return share > NEARLY_ALL or (share > most and estimated > ESTIMATED_SHIFT)


def _tell_reign(rows: Sequence[Row]) -> str:
    least = min(row[_SHARE] for row in rows)
    told = f"{_span(rows)} one class took {least:.0%} of the pseudo labels or more"
    for key, what in (
        (_SHIFT, "those of the pool"),
        (_ESTIMATED_SHIFT, "those that the probe expects"),
    ):
        if all(key in row for row in rows):
            shift = min(row[key] for row in rows)
            told += f", and their class shares were {shift:.2f} or more away from {what} (0 to 1)"
    return f"{told}; {_way_out(rows[-1])}"


def _way_out(row: Row) -> str:
    """The likely cause, the heaviest term but the supervised one, and what to change."""
    others = "more labels of each class, a higher confidence_threshold or a lower --lr"
    weighted = {
        key.removeprefix(_WEIGHTED): value
        for key, value in row.items()
        if key.startswith(_WEIGHTED) and key != _SUPERVISED and value > 0
    }
    if not weighted:
        return f"try {others}"
    heaviest = max(weighted, key=lambda name: weighted[name])
    return (
        f"the heaviest loss term was {heaviest!r} (weighted {weighted[heaviest]:.2g}, the "
        f"supervised one {row.get(_SUPERVISED, 0.0):.2g}): wrong pseudo labels confirm "
        f"themselves through it; try a lower {heaviest}_weight, then {others}"
    )


def _outweighs(name: str) -> Condition:
    """A term that is all that the gradient sees, while the labels are not learned."""
    key = _WEIGHTED + name

    def holds(row: Row) -> bool:
        supervised = row.get(_SUPERVISED, 0.0)
        return supervised >= LEARNED and row.get(key, 0.0) > LARGE * supervised

    def tell(rows: Sequence[Row]) -> str:
        least = min(row[key] / row[_SUPERVISED] for row in rows)
        left = min(row[_SUPERVISED] for row in rows)
        return (
            f"{_span(rows)} the weighted loss term {name!r} was {least:,.0f} times the supervised "
            f"one or more, which stayed at {left:.4f} or more: the labels are not learned; "
            f"try a lower {name}_weight or a lower --lr"
        )

    return holds, tell


def _vanishes(name: str) -> Condition:
    """A term that has no effect, though it has a weight and images pass the threshold."""
    key = _WEIGHTED + name

    def holds(row: Row) -> bool:
        given = row.get(key)
        if given is None or row.get(_COVERAGE, 1.0) < COVERAGE:
            return False
        switched_off = given == 0 and row.get(logged.loss_term(name).name, 0.0) != 0
        supervised = row.get(_SUPERVISED, 0.0)
        return not switched_off and supervised > 0 and given <= SMALL * supervised

    def tell(rows: Sequence[Row]) -> str:
        most = max(row[key] / row[_SUPERVISED] for row in rows)
        return (
            f"{_span(rows)} the weighted loss term {name!r} was {most:.1g} of the supervised one "
            f"or less, so it had no effect; try a higher {name}_weight or lower thresholds"
        )

    return holds, tell


def _falls(rows: Sequence[Row]) -> list[tuple[float, str]]:
    """The first fall of each accuracy that is sure.

    It is deep, or the pseudo labels have shifted as well, or the next evaluation confirms it.
    """
    found = []
    for key, name in _ACCURACIES.items():
        best: Row = {key: -1.0}
        low: list[Row] = []
        for row in (row for row in rows if key in row):
            if row[key] > best[key]:
                best = row
            low = [*low, row] if row[key] < best[key] - FALL else []
            sure = row[key] < best[key] - PLUNGE or _labels_shift(row)
            if len(low) == 2 or (low and sure):
                to = " and ".join(f"{r[key]:.4f} at step {r['step']:.0f}" for r in low)
                text = (
                    f"the {name} fell from {best[key]:.4f} at step {best['step']:.0f} to {to}; "
                    f"{_way_out(row)}"
                )
                found.append((row["step"], text))
                break
    return found


def _span(rows: Sequence[Row]) -> str:
    return f"from step {rows[0]['step']:.0f} to {rows[-1]['step']:.0f}"
