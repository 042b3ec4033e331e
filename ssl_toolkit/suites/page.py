"""Write the results of a suite: ``benchmark.json``, ``benchmark.csv`` and ``benchmark.html``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from markupsafe import Markup

from ssl_toolkit.comparisons.schema import ScoreStats, score_title
from ssl_toolkit.comparisons.time_to_accuracy import FRACTIONS
from ssl_toolkit.console import Console
from ssl_toolkit.files import write_atomically
from ssl_toolkit.reports.html.charts import dot_plot
from ssl_toolkit.reports.html.page import template
from ssl_toolkit.reports.text_table import NOTHING, TextTable, share, stats_text
from ssl_toolkit.suites.results import Benchmark, MemberResult, ResultRow
from ssl_toolkit.tabular import Row, write_rows

JSON, CSV, PAGE = "benchmark.json", "benchmark.csv", "benchmark.html"

_PERCENTS = [f"{100 * fraction:.0f}" for fraction in FRACTIONS]
COLUMNS = (
    *("member", "row", "algorithm", "upper_bound", "score", "seeds", "mean", "sd"),
    *("interval_low", "interval_high", "difference", "difference_low", "difference_high"),
    "seconds",
    *(f"{name}_{percent}" for percent in _PERCENTS for name in ("seconds_to", "reached")),
    *("coverage", "pseudo_label_accuracy"),
)
"""The columns of the CSV file."""


def write_results(results: Benchmark, folder: Path) -> None:
    """Write the three files, each whole or not at all.

    Args:
        results: Results.
        folder: Path to the folder of the suite.

    Raises:
        OSError: A file can't be written.
    """
    results.write(folder / JSON)
    lines = (_csv_row(member, row) for member in results.members for row in member.rows)
    write_rows(folder / CSV, COLUMNS, lines)
    page = render(results)
    write_atomically(
        folder / PAGE, lambda file: file.write(page.encode("utf-8", "backslashreplace"))
    )


def render(results: Benchmark) -> str:
    """Return the page as text; its links lead to the pages of the members."""
    names = [*dict.fromkeys(row.name for member in results.members for row in member.rows)]
    return template("benchmark.html.j2").render(
        results=results,
        overall=_overall_table(results),
        members=[
            (member, member_table(member), _plot(number, member, names))
            for number, member in enumerate(results.members)
        ],
        score_title=score_title,
    )


def show_results(results: Benchmark, console: Console) -> None:
    """Print the state of each member, and the rows by mean rank, a line each."""
    console.say(f"suite {results.suite} version {results.version}", important=True)
    for member in results.members:
        reason = f": {member.reason}" if member.reason else ""
        console.say(f"{member.name}: {member.status}{reason}", important=True)
    overall = results.overall
    for row in overall.rows:
        console.say(
            f"{row.name}: mean rank {row.mean_rank:.2f} over {len(overall.members)} "
            f"members, mean score {share(row.mean_score)}",
            important=True,
        )


def member_table(member: MemberResult) -> TextTable | None:
    """Return the table of a member without columns that have no values; None without rows."""
    rows = [dict(_cells(row)) for row in member.rows]
    heads = list(dict.fromkeys(head for row in rows for head in row))
    heads = [head for head in heads if any(row.get(head, NOTHING) != NOTHING for row in rows)]
    if not rows:
        return None
    return TextTable(heads, [[row.get(head, NOTHING) for head in heads] for row in rows])


def _cells(row: ResultRow) -> Iterator[tuple[str, str]]:
    """Yield the heads of the columns and the cells of a row."""
    yield "row", f"{row.name} (upper bound)" if row.is_bound else row.name
    part = row.completed < row.runs
    yield "n", f"{row.completed} of {row.runs}" if part else str(row.completed)
    yield "score", _stats(row.score)
    yield "95 % interval", _interval(row.score)
    yield "difference", _stats(row.difference, "+")
    yield "its 95 % interval", _interval(row.difference, "+")
    yield "seconds", NOTHING if row.seconds is None else f"{row.seconds.mean:.0f}"
    for percent, reached in zip(_PERCENTS, row.reached, strict=False):
        text = f"{len(reached.values)} of {row.completed} seeds"
        yield (
            f"seconds to {percent} % of the bound",
            text if reached.mean is None else f"{reached.mean:.1f}",
        )
    yield "coverage", _stats(row.coverage)
    yield "accuracy of pseudo labels", _stats(row.pseudo_label_accuracy)


def _stats(stats: ScoreStats | None, sign: str = "") -> str:
    return NOTHING if stats is None else stats_text(stats, sign=sign)


def _interval(stats: ScoreStats | None, sign: str = "") -> str:
    if stats is None or stats.interval is None:
        return NOTHING
    low, high = stats.interval
    return f"{low:{sign}.4f} to {high:{sign}.4f}"


def _overall_table(results: Benchmark) -> TextTable | None:
    overall = results.overall
    if not overall.rows:
        return None
    rows = [
        [
            row.name,
            f"{row.mean_rank:.2f}",
            share(row.mean_score),
            *(f"{row.ranks[member]:g}" for member in overall.members),
        ]
        for row in overall.rows
    ]
    return TextTable(("row", "mean rank", "mean score", *overall.members), rows)


def _plot(number: int, member: MemberResult, names: list[str]) -> Markup:
    """Plot the score of every seed; a row has the same color in all members."""
    rows = [(row.name, names.index(row.name), row.score) for row in member.rows if row.score]
    title = f"{score_title(member.ranked_by)} of each seed, {member.name}"
    return dot_plot(f"member-{number}", title, rows) if rows else Markup("")


def _csv_row(member: MemberResult, row: ResultRow) -> Row:
    score, difference = row.score, row.difference
    reached: list[float | None] = []
    for of in row.reached:
        reached += [of.mean, len(of.values)]
    return [
        *(member.name, row.name, row.algorithm, "yes" if row.is_bound else "no"),
        *(member.ranked_by, row.completed),
        *((score.mean, score.deviation) if score else (None, None)),
        *((score and score.interval) or (None, None)),
        difference.mean if difference else None,
        *((difference and difference.interval) or (None, None)),
        row.seconds.mean if row.seconds else None,
        *(reached or [None] * 2 * len(FRACTIONS)),
        row.coverage.mean if row.coverage else None,
        row.pseudo_label_accuracy.mean if row.pseudo_label_accuracy else None,
    ]
