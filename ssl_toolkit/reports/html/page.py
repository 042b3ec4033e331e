"""The report: one self-contained HTML page of a comparison or a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ssl_toolkit.comparisons.ranking import leaders
from ssl_toolkit.comparisons.schema import (
    ComparedRun,
    Comparison,
    Difference,
    ScoreStats,
    Variant,
    score_title,
)
from ssl_toolkit.files import write_atomically
from ssl_toolkit.reports.html import classes as by_class
from ssl_toolkit.reports.html import curves as over_steps
from ssl_toolkit.reports.html.charts import MOST_NAMED, dot_plot, number, swatch
from ssl_toolkit.reports.html.label_section import best_by_number, label_section
from ssl_toolkit.reports.label_curve import curve_sentences
from ssl_toolkit.reports.tables import setting_text, summary_table
from ssl_toolkit.reports.text_table import NOTHING, TextTable, p_text, share, stats_text
from ssl_toolkit.text import display_path

PAGE = "report.html"
"""The name of the page beside the tables of a comparison."""

_TEMPLATES = Path(__file__).parent / "templates"


def write_report(comparison: Comparison, path: Path) -> None:
    """Write a page with all results of a comparison, whole or not at all.

    The page contains its style, its charts and its images, loads nothing and runs no script. It
    reads ``metrics.jsonl`` and ``predictions.npz`` in the folders of the runs; files that are
    missing or not readable are left out and named. A single run is a comparison of one row and one
    seed.

    Args:
        comparison: At least one row, each with at least one run.
        path: Path to the HTML file.

    Raises:
        OSError: The file can't be written; an earlier one is untouched.
    """
    page = render(comparison, path.parent)
    # A name may contain half of a surrogate pair, which no encoding of a page can.
    write_atomically(path, lambda file: file.write(page.encode("utf-8", "backslashreplace")))


def template(name: str) -> Template:
    """Return a template of a page, which escapes all texts.

    Args:
        name: Its file.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def render(comparison: Comparison, folder: Path) -> str:
    """Return the page as text.

    Args:
        comparison: As for `write_report`.
        folder: The folder of the page; paths to runs inside it are relative to it.
    """
    logs = over_steps.read_logs(comparison)
    charts = over_steps.draw_charts(comparison, logs)
    return template("report.html.j2").render(
        comparison=comparison,
        single=comparison.is_single,
        summary=_summary(comparison),
        missing=_missing(comparison),
        imbalance=_imbalance(comparison),
        strangers=_strangers(comparison),
        problems=[(_name(comparison, r), r) for r in comparison.runs if not r.completed],
        results=summary_table(comparison),
        seeds_plot="" if comparison.is_single else _seeds_plot(comparison),
        runs=_runs_table(comparison, folder),
        labels=label_section(comparison),
        logs=logs,
        learning=charts["learning"][0],
        not_logged=charts["learning"][1],
        health=charts["health"][0],
        no_health=charts["health"][1] + charts["algorithm"][1],
        algorithm_charts=charts["algorithm"][0],
        most_named=MOST_NAMED,
        pseudo_labels=by_class.pseudo_label_table(comparison),
        **by_class.class_results(comparison),
        shared=_lines(comparison.shared),
        options=[(row.name, _lines(row.options)) for row in comparison.rows],
        conditions=_conditions(comparison),
        ranked_by=score_title(comparison.ranked_by),
        swatch=swatch,
        setting_text=setting_text,
    )


def _name(comparison: Comparison, run: ComparedRun) -> str:
    """Return row and seed of a run; the seed alone if there is one row."""
    seed = f"seed {run.seed}"
    return seed if len(comparison.rows) == 1 else f"{run.row}, {seed}"


def _summary(comparison: Comparison) -> list[str]:
    """Return the results in a few sentences."""
    score = comparison.ranked_by
    kind = score_title(score) + " (no test split)" * score.startswith("validation.")
    rows = [row for row in comparison.rows if score in row.scores]
    if not rows:
        return ["No run is completed, so there are no results yet."]
    if comparison.is_single:
        return [_single(rows[0], rows[0].scores[score], kind)]
    if comparison.curve is not None:
        return [
            best_by_number(comparison, comparison.curve),
            *(f"{text}." for text in curve_sentences(comparison, comparison.curve)),
        ]
    best, *equal = leaders(rows, score)
    stats = best.scores[score]
    seeds = "on one seed" if stats.count == 1 else f"over {stats.count} seeds"
    result = f"{stats_text(stats)} {seeds}"
    if len(comparison.rows) == 1:
        sentences = [f"{best.name} has a {kind} of {result}."]
    else:
        hidden = any(row.uses_hidden_labels for row in rows)
        among = " of the rows that do not use the hidden labels" if hidden else ""
        if equal:
            names = " and ".join(row.name for row in (best, *equal))
            return [f"{names} have the same highest mean {kind}{among}: {share(stats.mean)}."]
        sentences = [f"{best.name} has the highest mean {kind}{among}: {result}."]
    if stats.interval is not None:
        lower, upper = stats.interval
        sentences.append(f"The 95 % interval of that mean is {share(lower)} to {share(upper)}.")
    if comparison.baseline is not None and best.difference is not None:
        sentences.append(_difference(best.name, comparison.baseline, best.difference))
    elif comparison.baseline == best.name and len(rows) > 1:
        sentences.append("It is the baseline that the others are compared with.")
    return sentences


def _missing(comparison: Comparison) -> str:
    """Return how many runs have no results; empty if all have."""
    counts = Counter(run.status for run in comparison.runs)
    total, _ = counts.total(), counts.pop("completed", 0)
    if not counts:
        return ""
    parts = " and ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"Of {total} {'run' if total == 1 else 'runs'}, {parts}: not in any mean below."


def _imbalance(comparison: Comparison) -> str:
    """Return the long tails that the runs were drawn with, in a sentence; empty without any."""
    drawn = (run.summary.imbalance for run in comparison.runs if run.summary)
    texts: dict[str, None] = {}
    for tail in filter(None, drawn):
        counts = {"labels": tail.labels, "unlabeled images": tail.pool or {}}
        listed = [f"{max(c.values()):,} to {min(c.values()):,} {n}" for n, c in counts.items() if c]
        texts[f"{' and '.join(tail.ratios)} ({', '.join(listed)} in a class)"] = None
    return f"Drawn with an imbalance of {'; '.join(texts)}." if texts else ""


def _strangers(comparison: Comparison) -> str:
    """Return how many strangers the pools contain, in a sentence; empty without any."""
    summaries = [run.summary for run in comparison.runs if run.summary and run.summary.strangers]
    pools = {(summary.strangers, summary.counts.unlabeled) for summary in summaries}
    texts = [f"{strangers:,} of {unlabeled:,}" for strangers, unlabeled in sorted(pools)]
    return f"{'; '.join(texts)} unlabeled images are strangers, of no class." if texts else ""


def _seeds_plot(comparison: Comparison) -> Markup:
    """Plot the main score of every seed; empty without results."""
    score = comparison.ranked_by
    rows = [
        (row.name, index, row.scores[score])
        for index, row in enumerate(comparison.rows)
        if score in row.scores
    ]
    title = f"{score_title(score).capitalize()} of each seed"
    return dot_plot("seeds", title, rows) if rows else Markup("")


def _runs_table(comparison: Comparison, folder: Path) -> TextTable:
    """Return every run with its status and main score."""
    score = comparison.ranked_by
    rows = []
    for run in comparison.runs:
        facts = [getattr(run.summary, name, None) for name in ("best_step", "steps", "seconds")]
        rows.append(
            [
                _name(comparison, run),
                run.status,
                share(run.scores[score]) if score in run.scores else NOTHING,
                *(NOTHING if fact is None else number(fact) for fact in facts),
                _path(run.folder, folder),
            ]
        )
    heads = ("run", "status", score_title(score), "best step", "steps", "seconds", "folder")
    return TextTable(heads, rows)


def _single(row: Variant, stats: ScoreStats, kind: str) -> str:
    run = row.runs[0]
    summary = run.summary
    test = summary and (summary.test or (summary.multilabel and summary.multilabel.test))
    images = f" on {test.count:,} images" if test and kind.startswith("test ") else ""
    text = f"{row.name}, seed {run.seed}: a {kind} of {share(stats.mean)}{images}"
    if summary and summary.best_step is not None:
        best = f"step {summary.best_step:,} of {summary.steps:,}"
        text += f", with the weights of {best}, the best on validation"
    return f"{text}. One run does not show how much the result varies over seeds."


def _difference(name: str, baseline: str, difference: Difference) -> str:
    text = f"Against {baseline}, the baseline, {name} differs by {difference.mean:+.4f}"
    if difference.count == 1:
        return f"{text} on the one seed that both completed; one seed allows no test of that."
    text += f" (mean of {difference.count} paired seeds"
    p_value, adjusted = difference.adjusted_p_value, ", adjusted for the number of rows"
    if p_value is None:
        p_value, adjusted = difference.p_value, ""
    if p_value is None:
        return f"{text}; no test is possible)."
    text += f"; paired t-test{adjusted}, p = {p_text(p_value)})".replace("= <", "< ")
    return f"{text}: these seeds do not distinguish the two." if p_value >= 0.05 else f"{text}."


def _path(path: Path, folder: Path) -> str:
    """Return a path relative to the report, without the rest of the machine's paths."""
    path, folder = path.absolute(), folder.absolute()
    return display_path(
        path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    )


def _lines(settings: Mapping[str, Any]) -> str:
    """Return settings for readers: no quotes around plain text."""
    return "\n".join(f"{key}: {setting_text(value)}" for key, value in settings.items())


def _conditions(comparison: Comparison) -> dict[str, dict[str, str]]:
    """Return versions and hardware by name and value; a value that not all have with its runs."""
    conditions: dict[str, dict[str, list[str]]] = {}
    recorded = {_name(comparison, run): run.record for run in comparison.runs if run.record}
    for run, record in recorded.items():
        for name, value in _facts(record.tree()):
            conditions.setdefault(name, {}).setdefault(value, []).append(run)
    return {
        name: {
            value: "" if len(runs) == len(recorded) else "; ".join(runs)
            for value, runs in values.items()
        }
        for name, values in conditions.items()
    }


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flatten a record: its mappings one level deep."""
    facts = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            prefix = "" if name == "versions" else f"{name.removesuffix('s')} of "
            facts += [(f"{prefix}{key}", str(inner)) for key, inner in value.items()]
        elif isinstance(value, list):
            facts += [(name.removesuffix("s"), str(inner)) for inner in value]
        else:
            facts.append((name.replace("_", " "), str(value)))
    return facts
