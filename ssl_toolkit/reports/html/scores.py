"""The sentences and tables about scores at the top of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from ssl_toolkit.comparisons.types import ComparedRun, Comparison, Difference, ScoreStats, Variant
from ssl_toolkit.reports.html.charts import dot_plot, number
from ssl_toolkit.reports.summary_table import NOTHING, p_text, share, sheet, spread_text
from ssl_toolkit.text import display_path


@dataclass(frozen=True)
class Table:
    """A table of text: heads, and rows whose first cell names them."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def largest(self) -> float:
        """The largest number in its cells."""
        cells = [cell for row in self.rows for cell in row[1:] if cell[:1].isdigit()]
        return max(map(float, cells), default=0.0)


@dataclass(frozen=True)
class Problem:
    """A run without results."""

    run: str
    status: str
    reason: str


def is_single(comparison: Comparison) -> bool:
    """Return True if the report is of one run."""
    return len(comparison.rows) == 1 and len(comparison.rows[0].runs) == 1


def run_name(comparison: Comparison, member: ComparedRun) -> str:
    """Return row and seed of a run; the seed alone if there is one row."""
    seed = f"seed {member.seed}"
    return seed if len(comparison.rows) == 1 else f"{member.row}, {seed}"


def main_score(comparison: Comparison) -> str:
    """Return the score that ranks: the test accuracy, or the validation accuracy without tests."""
    tested = any("test.accuracy" in row.scores for row in comparison.rows)
    return "test.accuracy" if tested else "validation.accuracy"


def summary(comparison: Comparison) -> list[str]:
    """Return the results in a few sentences."""
    score = main_score(comparison)
    kind = "test accuracy" if score == "test.accuracy" else "validation accuracy (no test part)"
    rows = [row for row in comparison.rows if score in row.scores]
    if not rows:
        return ["No run has finished, so there are no results yet."]
    if is_single(comparison):
        return [_single(rows[0], rows[0].scores[score], kind)]
    competing = [row for row in rows if not row.uses_hidden_labels] or rows
    best = max(competing, key=lambda row: row.scores[score].mean)
    spread = best.scores[score]
    sentences = []
    over = f"over {spread.count} seeds" if spread.count > 1 else "on one seed"
    if len(comparison.rows) == 1:
        sentences.append(f"{best.name} has a {kind} of {spread_text(spread)} {over}.")
    else:
        besides = " of the rows that were not given the hidden labels" * any(
            row.uses_hidden_labels for row in rows
        )
        sentences.append(
            f"{best.name} has the highest mean {kind}{besides}: {spread_text(spread)} {over}."
        )
    if spread.interval is not None:
        a, b = spread.interval
        sentences.append(f"The 95 % interval of that mean is {share(a)} to {share(b)}.")
    if comparison.baseline is not None and best.difference is not None:
        sentences.append(_difference(best.name, comparison.baseline, best.difference))
    elif comparison.baseline == best.name and len(rows) > 1:
        sentences.append("It is the baseline that the others are compared with.")
    return sentences


def missing(comparison: Comparison) -> str:
    """Return how many runs have no results; empty if all have."""
    members = [member for row in comparison.rows for member in row.runs]
    counts = {
        status: sum(member.status == status for member in members)
        for status in ("failed", "interrupted", "running", "missing")
    }
    said = [f"{count} {status}" for status, count in counts.items() if count]
    if not said:
        return ""
    runs = "run" if len(members) == 1 else "runs"
    return f"Of {len(members)} {runs}, {' and '.join(said)}: not in any mean below."


def problems(comparison: Comparison) -> list[Problem]:
    """Return each run without results, with its reason."""
    return [
        Problem(run_name(comparison, member), member.status, member.reason)
        for row in comparison.rows
        for member in row.runs
        if not member.completed
    ]


def results_table(comparison: Comparison) -> Table:
    """Return the columns of the summary table but the names of the rows."""
    table = sheet(comparison)
    heads = [name for block in table.blocks for name in block if name != table.head]
    return Table(heads, [[cells[name] for name in heads] for cells in table.rows])


def seeds_plot(comparison: Comparison) -> Markup:
    """Plot the main score of every seed; empty without results."""
    score = main_score(comparison)
    rows = [
        (r.name, k, r.scores[score]) for k, r in enumerate(comparison.rows) if score in r.scores
    ]
    if not rows:
        return Markup("")
    title = "Test accuracy" if score == "test.accuracy" else "Validation accuracy"
    return dot_plot("seeds", f"{title} of each seed", rows)


def runs_table(comparison: Comparison, beside: Path) -> Table:
    """Return every run with its status and main score."""
    score = main_score(comparison)
    part = score.partition(".")[0]
    rows = []
    for row in comparison.rows:
        for member in row.runs:
            value = row.scores[score].values.get(member.seed) if score in row.scores else None
            run_summary = member.summary
            rows.append(
                [
                    run_name(comparison, member),
                    member.status,
                    NOTHING if value is None or not member.completed else share(value),
                    _plain(run_summary and run_summary.best_step),
                    _plain(run_summary and run_summary.steps),
                    _plain(run_summary and run_summary.seconds),
                    _place(member.folder, beside),
                ]
            )
    heads = ("run", "status", f"{part} accuracy", "best step", "steps", "seconds", "folder")
    return Table(heads, rows)


def _single(row: Variant, spread: ScoreStats, kind: str) -> str:
    member = row.runs[0]
    run_summary = member.summary
    test = run_summary and run_summary.test
    on = f" on {test.count:,} images" if test and kind == "test accuracy" else ""
    text = f"{row.name}, seed {member.seed}: a {kind} of {share(spread.mean)}{on}"
    if run_summary and run_summary.best_step is not None:
        best = f"step {run_summary.best_step:,} of {run_summary.steps:,}"
        text += f", with the weights of {best}, the best on validation"
    return f"{text}. One run does not show how much the result varies over seeds."


def _difference(name: str, baseline: str, difference: Difference) -> str:
    spread = difference.spread
    text = f"Against {baseline}, the baseline, {name} differs by {spread.mean:+.4f}"
    if spread.count == 1:
        return f"{text} on the one seed that both finished; one seed gives no test of that."
    text += f" (mean of {spread.count} paired seeds"
    if difference.p_value is None:
        return f"{text}; no test is possible)."
    decisive = difference.p_value if difference.adjusted is None else difference.adjusted
    adjusted = "" if difference.adjusted is None else ", adjusted for the number of rows"
    text += f"; paired t-test{adjusted}, p = {p_text(decisive)})".replace("= <", "< ")
    return f"{text}: these seeds do not distinguish the two." if decisive >= 0.05 else f"{text}."


def _plain(value: object) -> str:
    return number(value) if isinstance(value, int | float) else NOTHING


def _place(folder: Path, beside: Path) -> str:
    """Return the folder relative to the report, without the rest of the machine's paths."""
    folder = folder.absolute()
    if folder.is_relative_to(beside.absolute()):
        return display_path(folder.relative_to(beside.absolute()))
    return display_path(Path(folder.name))
