"""The results of a suite, ``benchmark.json``: collected from the comparisons in its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from ssl_toolkit.comparisons.encodable import Text
from ssl_toolkit.comparisons.gather import gather_plan
from ssl_toolkit.comparisons.schema import (
    PLAN,
    Comparison,
    Difference,
    ScoreStats,
    Variant,
    read_failures,
    read_plan,
)
from ssl_toolkit.comparisons.statistics import score_stats
from ssl_toolkit.comparisons.time_schema import Reached
from ssl_toolkit.comparisons.time_to_accuracy import last_value, read_log
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.engine.logged_metrics import (
    COVERAGE,
    PSEUDO_LABEL_ACCURACY,
)
from ssl_toolkit.errors import UserError
from ssl_toolkit.runs.check import refuse_contradictions
from ssl_toolkit.suites.members import MEMBERS
from ssl_toolkit.suites.schema import Suite

Status = Literal["completed", "incomplete", "failed", "missing data", "not run"]


class ResultRow(Part):
    """A row of a member."""

    name: Text
    algorithm: Text
    is_bound: bool
    """True if the algorithm uses the hidden labels: an upper bound, which has no rank."""
    runs: int
    """Number of runs that were planned."""
    completed: int
    """Number of runs with results."""
    score: ScoreStats | None
    """The score that ranks; None without a completed run."""
    difference: Difference | None
    """To the baseline, paired by seed; None for the baseline itself."""
    seconds: ScoreStats | None
    """Wall seconds of training with its evaluations."""
    reached: tuple[Reached, ...]
    """For each of 90 % and 95 %; empty without an upper bound or validation images."""
    coverage: ScoreStats | None
    """Share of the unlabeled images with a pseudo label in use, at the end of training."""
    pseudo_label_accuracy: ScoreStats | None
    """Accuracy of these pseudo labels."""


class MemberResult(Part):
    """A member of the suite."""

    name: Text
    title: Text
    folder: Text
    """Folder of its comparison, relative to that of the suite."""
    status: Status
    reason: Text = ""
    """Why it has no results, or not all, in one line."""
    ranked_by: str = ""
    """Name of the score that ranks, such as ``test.accuracy``; empty without results."""
    fingerprint: str = ""
    """Hash of the settings that its rows share."""
    rows: tuple[ResultRow, ...] = ()
    notes: tuple[Text, ...] = ()


class OverallRow(Part):
    """A row over several members."""

    name: Text
    mean_rank: float
    """Mean of its ranks; 1 is the best, and equal scores share the mean of their ranks."""
    mean_score: float
    ranks: dict[str, float]
    """By member."""


class Overall(Part):
    """The rows that have results in every member with results, by their mean rank."""

    members: tuple[str, ...] = ()
    rows: tuple[OverallRow, ...] = ()
    left_out: tuple[Text, ...] = ()
    """Rows without results in one of these members, which have no rank."""


class Benchmark(Document):
    """Content of ``benchmark.json``."""

    suite: str
    version: int
    title: Text
    baseline: Text
    upper_bound: Text | None
    members: tuple[MemberResult, ...]
    overall: Overall = Field(default_factory=Overall)


def collect(
    suite: Suite,
    folder: Path,
    *,
    missing: Mapping[str, str] | None = None,
    failures: Mapping[str, str] | None = None,
) -> Benchmark:
    """Read the comparisons of a suite, and compute its results.

    Args:
        suite: The suite as it was run.
        folder: Path to the output folder.
        missing: By member, the data that was missing; ignored for a member that was run.
        failures: By member, why it was refused.
    """
    members = tuple(
        _member(suite, name, folder, (missing or {}).get(name, ""), (failures or {}).get(name, ""))
        for name in suite.members
    )
    return Benchmark(
        suite=suite.name,
        version=suite.version,
        title=suite.title,
        baseline=suite.baseline,
        upper_bound=suite.upper_bound,
        members=members,
        overall=overall(members),
    )


def _member(suite: Suite, name: str, folder: Path, missing: str, failure: str) -> MemberResult:
    path = folder / MEMBERS / name

    def result(status: Status, reason: str, **facts: Any) -> MemberResult:
        return MemberResult(
            name=name,
            title=suite.members[name].title,
            folder=f"{MEMBERS}/{name}",
            status=status,
            reason=" ".join(reason.split()),
            **facts,
        )

    if not (path / PLAN).exists():
        status: Status = "failed" if failure else "missing data" if missing else "not run"
        return result(status, failure or missing)
    try:
        comparison = gather_plan(read_plan(path), path, read_failures(path))
        refuse_contradictions(run.folder for run in comparison.runs if run.completed)
    except UserError as error:
        return result("failed", failure or error.messages[0])
    unfinished = [run for run in comparison.runs if not run.completed]
    reason = failure
    if unfinished and not reason:
        first = unfinished[0]
        reason = f"{len(unfinished)} of {len(comparison.runs)} runs have no results; {first.row}, "
        reason += f"seed {first.seed}: {first.status}{f': {first.reason}' * bool(first.reason)}"
    return result(
        "failed" if failure else "incomplete" if unfinished else "completed",
        reason,
        ranked_by=comparison.ranked_by,
        fingerprint=comparison.fingerprint,
        rows=_rows(comparison),
        notes=comparison.notes,
    )


def _rows(comparison: Comparison) -> tuple[ResultRow, ...]:
    bounded = comparison.levels_of == "upper bound"
    return tuple(_row(row, comparison.ranked_by, bounded=bounded) for row in comparison.rows)


def _row(row: Variant, ranked_by: str, *, bounded: bool) -> ResultRow:
    logs = {run.seed: read_log(run) for run in row.completed_runs}
    coverage = _by_seed(logs, lambda rows: last_value(rows, COVERAGE.name))
    accuracy = _by_seed(logs, lambda rows: last_value(rows, PSEUDO_LABEL_ACCURACY.name))
    return ResultRow(
        name=row.name,
        algorithm=row.algorithm,
        is_bound=row.uses_hidden_labels,
        runs=len(row.runs),
        completed=len(logs),
        score=row.scores.get(ranked_by),
        difference=row.difference,
        seconds=row.scores.get("seconds"),
        reached=row.reached if bounded else (),
        coverage=score_stats(coverage) if coverage else None,
        pseudo_label_accuracy=score_stats(accuracy) if accuracy else None,
    )


def _by_seed(
    logs: Mapping[int, Sequence[Mapping[str, float]]],
    of: Callable[[Sequence[Mapping[str, float]]], float | None],
) -> dict[int, float]:
    """Return a number of each log that has it."""
    values = {seed: of(rows) for seed, rows in logs.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def overall(members: Sequence[MemberResult]) -> Overall:
    """Rank the rows in each member, and average their ranks.

    Only rows with a score in every member that has scores are ranked, so that all ranks are among
    the same rows; upper bounds are not.

    Source: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006,
    section 3.2.2 (average ranks).
    """
    scores = {
        one.name: {row.name: row.score.mean for row in one.rows if row.score and not row.is_bound}
        for one in members
    }
    scores = {name: of for name, of in scores.items() if of}
    names = [*dict.fromkeys(name for of in scores.values() for name in of)]
    ranked = [name for name in names if all(name in of for of in scores.values())]
    ranks = {one: _ranks({name: of[name] for name in ranked}) for one, of in scores.items()}
    rows = [
        OverallRow(
            name=name,
            mean_rank=fmean(of[name] for of in ranks.values()),
            mean_score=fmean(of[name] for of in scores.values()),
            ranks={one: of[name] for one, of in ranks.items()},
        )
        for name in ranked
    ]
    return Overall(
        members=tuple(scores),
        rows=tuple(sorted(rows, key=lambda row: row.mean_rank)),
        left_out=tuple(name for name in names if name not in ranked),
    )


def _ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the rank of each score, 1 for the highest; equal ones share the mean of theirs."""
    # Rounded, so that means which are equal but for their last bits are equal.
    rounded = {name: round(score, 12) for name, score in scores.items()}
    values = [*rounded.values()]
    return {
        name: 1 + sum(other > score for other in values) + (values.count(score) - 1) / 2
        for name, score in rounded.items()
    }
