"""The report: one page of a comparison or a run, which needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ssl_toolkit.comparisons.comparability import own_settings
from ssl_toolkit.comparisons.types import ComparedRun, Comparison
from ssl_toolkit.files import write_atomically
from ssl_toolkit.reports.html import classes as by_class
from ssl_toolkit.reports.html import curves as over_steps
from ssl_toolkit.reports.html import scores as of_runs
from ssl_toolkit.reports.html.charts import MOST_NAMED, swatch

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Conditions:
    """A fact that the runs recorded about their versions or hardware."""

    name: str
    values: tuple[tuple[str, str], ...]
    """Each value, and the runs that have it; no runs where all have the same."""


def write_report(comparison: Comparison, path: Path) -> None:
    """Write a page with all results of a comparison, whole or not at all.

    The page holds its style, its charts and its images, loads nothing and runs nothing. It reads
    ``metrics.jsonl`` and ``predictions.npz`` in the folders of the runs; what isn't there or can't
    be read is left out and named. A single run is a comparison of one row and one seed.

    Args:
        comparison: at least one row, each with at least one member.
        path: of the HTML file.

    Raises:
        OSError: the file can't be written; what stood there before is untouched.
    """
    page = render(comparison, path.parent)
    # A name may hold half of a surrogate pair, which no encoding of a page can.
    write_atomically(path, lambda file: file.write(page.encode("utf-8", "backslashreplace")))


def render(comparison: Comparison, beside: Path) -> str:
    """The page as text.

    Args:
        comparison: as for `write_report`.
        beside: the folder of the page; folders of runs inside it are named from there.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    logs = over_steps.read_logs(comparison)
    learning, not_logged = over_steps.learning_charts(comparison, logs)
    health, no_health = over_steps.health_charts(comparison, logs)
    own, no_own = over_steps.algorithm_charts(comparison, logs)
    single = of_runs.is_single(comparison)
    return environment.get_template("report.html.j2").render(
        comparison=comparison,
        single=single,
        summary=of_runs.summary(comparison),
        missing=of_runs.missing(comparison),
        problems=of_runs.problems(comparison),
        results=of_runs.results_table(comparison),
        seeds_plot="" if single else of_runs.seeds_plot(comparison),
        runs=of_runs.runs_table(comparison, beside),
        logs=logs,
        learning=learning,
        not_logged=not_logged,
        health=health,
        no_health=no_health + no_own,
        algorithm_charts=own,
        most_named=MOST_NAMED,
        pseudo_labels=by_class.pseudo_label_table(comparison),
        **_classes(comparison),
        shared=_lines(comparison.shared),
        own=[(row.name, _lines(_own_section(row.runs))) for row in comparison.rows],
        conditions=_conditions(comparison),
        swatch=swatch,
    )


def _classes(comparison: Comparison) -> dict[str, Any]:
    classes, found = by_class.read_predictions(comparison)
    rows = comparison.rows
    few = len(classes) <= by_class.MOST_IN_MATRIX
    there = any(own is not None for own in found)
    return {
        "classes": classes,
        "matrices": by_class.matrices(rows, classes, found) if few else [],
        "pairs": [] if few else by_class.confused_pairs(rows, classes, found),
        "per_class": by_class.class_table(rows, classes, found) if there else None,
        "unpredicted": [row.name for row, own in zip(rows, found, strict=True) if own is None],
        "mistakes": [
            (row.name, own.mistakes)
            for row, own in zip(rows, found, strict=True)
            if own is not None and own.mistakes
        ],
    }


def _own_section(members: tuple[ComparedRun, ...]) -> Mapping[str, Any]:
    configured = [member for member in members if member.config is not None]
    return own_settings(configured[0]) if configured else {}


def _lines(tree: Mapping[str, Any], indent: str = "") -> str:
    """A configuration as it is read, not as it is parsed: no quotes around what is plain."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{key}:", _lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_word(value)}")
    return "\n".join(lines)


def _word(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def _conditions(comparison: Comparison) -> list[Conditions]:
    """Versions and hardware; a value that not all runs share comes with its runs."""
    found: dict[str, dict[str, list[str]]] = {}
    records = 0
    for row in comparison.rows:
        for member in row.runs:
            if member.record is None:
                continue
            records += 1
            for name, value in _flat(member.record.tree()):
                run = of_runs.run_name(comparison, member)
                found.setdefault(name, {}).setdefault(value, []).append(run)
    return [
        Conditions(
            name,
            tuple(
                (value, "" if len(runs) == records else "; ".join(runs))
                for value, runs in values.items()
            ),
        )
        for name, values in found.items()
    ]


def _flat(record: Mapping[str, Any]) -> list[tuple[str, str]]:
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
