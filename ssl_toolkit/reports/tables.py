"""A comparison as JSON, CSV and Markdown, and on the screen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ssl_toolkit import markdown
from ssl_toolkit.comparisons.comparability import own_settings
from ssl_toolkit.comparisons.read import SCORES, scores_of
from ssl_toolkit.comparisons.types import ComparedRun, Comparison, Difference, ScoreStats, Variant
from ssl_toolkit.console import Console
from ssl_toolkit.errors import visible
from ssl_toolkit.files import write_json, write_text
from ssl_toolkit.reports.summary_table import NOTHING, cell, foot, sheet
from ssl_toolkit.tabular import write_rows
from ssl_toolkit.text import display_path, display_text

FORMAT = "ssl-toolkit comparison 1"
"""Value of ``format`` in ``comparison.json``."""
NAMES = ("comparison.json", "comparison.csv", "comparison.md")


def write_tables(comparison: Comparison, folder: Path) -> tuple[Path, ...]:
    """Write ``comparison.json``, ``.csv`` and ``.md``, each whole or not at all.

    The JSON holds all results and their inputs as numbers; the CSV a line per run, with empty cells
    for missing scores; the Markdown the table of the terminal and the HTML report.

    Args:
        comparison: what to write.
        folder: created if missing; folders of runs inside it are relative to it.

    Returns:
        The three paths.

    Raises:
        OSError: a file can't be written; the previous one is untouched.
    """
    as_json, as_csv, as_markdown = (folder / name for name in NAMES)
    write_json(as_json, _strict(tree(comparison, folder)))
    lines = [_line(row, member) for row in comparison.rows for member in row.runs]
    write_rows(as_csv, (*_COLUMNS, *SCORES), lines)
    write_text(as_markdown, markdown_page(comparison))
    return as_json, as_csv, as_markdown


def show_table(comparison: Comparison, console: Console) -> None:
    """Print the rows: a table on a terminal, a line per row elsewhere; then the notes."""
    table_text = sheet(comparison)
    if console.rich.is_terminal:
        for place, columns in enumerate(table_text.blocks):
            title = Text(visible(display_text(comparison.name))) if place == 0 else None
            table = Table(title=title)
            for number, name in enumerate(columns):
                table.add_column(Text(visible(name)), justify="right" if number else "left")
            for cells in table_text.rows:
                table.add_row(*(Text(visible(cells[name])) for name in columns))
            console.rich.print(table)
    else:
        for cells in table_text.rows:
            texts = [
                f"{name} {value}"
                for name, value in cells.items()
                if name != table_text.head and value != NOTHING
            ]
            console.say(f"{cells[table_text.head]}: {', '.join(texts)}", important=True)
    for line in (*table_text.footnotes, *foot(comparison)):
        console.say(line, important=True)


def markdown_page(comparison: Comparison) -> str:
    """Return the table as Markdown, with its footnotes, notes, seeds and versions."""
    table_text = sheet(comparison)
    columns = [*dict.fromkeys(name for block in table_text.blocks for name in block)]
    rows = [
        [_escaped(cells[name]) if name == table_text.head else cells[name] for name in columns]
        for cells in table_text.rows
    ]
    parts = [
        f"# {_escaped(display_text(comparison.name))}",
        markdown.table([*map(_escaped, columns)], rows),
        "  \n".join(map(_escaped, table_text.footnotes)),
        markdown.bullets(map(_escaped, foot(comparison))),
        _made_by(comparison),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def tree(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """Return everything about a comparison in plain types.

    Args:
        comparison: the comparison.
        folder: its place; folders of runs inside it are relative to it.
    """
    completed = [m for row in comparison.rows for m in row.runs if m.completed]
    return {
        "format": FORMAT,
        "name": comparison.name,
        "baseline": comparison.baseline,
        "seeds": list(comparison.seeds),
        "fingerprint": comparison.fingerprint,
        "splits": _by_seed(completed, "split"),
        "initial_weights": _by_seed(completed, "initial_weights"),
        "rows": [_row(row, folder) for row in comparison.rows],
        "notes": list(comparison.notes),
        "shared": dict(comparison.shared),
        "versions": _versions(completed),
    }


def _row(row: Variant, folder: Path) -> dict[str, Any]:
    first = next((member for member in row.runs if member.config), None)
    return {
        "name": row.name,
        "algorithm": row.algorithm,
        "uses_hidden_labels": row.uses_hidden_labels,
        "overrides": dict(row.overrides),
        "options": {} if first is None else own_settings(first),
        "scores": {name: _spread(spread) for name, spread in row.scores.items()},
        "difference": None if row.difference is None else _difference(row.difference),
        "runs": [_member(member, folder) for member in row.runs],
    }


def _spread(spread: ScoreStats) -> dict[str, Any]:
    return {
        "n": spread.count,
        "mean": spread.mean,
        "deviation": spread.deviation,
        "interval": None if spread.interval is None else list(spread.interval),
        "values": {str(seed): value for seed, value in spread.values.items()},
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "score": "test.accuracy",
        **_spread(difference.spread),
        "p_value": difference.p_value,
        "adjusted_p_value": difference.adjusted,
    }


def _member(member: ComparedRun, folder: Path) -> dict[str, Any]:
    inside = member.folder.is_relative_to(folder)
    record = member.record
    return {
        "seed": member.seed,
        "status": member.status,
        "reason": member.reason,
        "folder": display_path(member.folder.relative_to(folder) if inside else member.folder),
        "scores": _scores(member),
        **{
            key: getattr(record, key, None)
            for key in (
                *("fingerprint", "split", "initial_weights", "draws"),
                *("device", "torch_threads"),
            )
        },
    }


def _by_seed(members: Sequence[ComparedRun], key: str) -> dict[str, Any]:
    """The hashes by seed; several only where rows differ by permission in what they follow from."""
    values: dict[str, dict[str, None]] = {}
    for member in members:
        value = getattr(member.record, key, None)
        if value is not None:
            values.setdefault(str(member.seed), {})[str(value)] = None
    return {seed: [*values] for seed, values in sorted(values.items(), key=lambda i: int(i[0]))}


def _versions(members: Sequence[ComparedRun]) -> dict[str, list[str]]:
    values: dict[str, dict[str, None]] = {}
    for member in members:
        for name, version in (member.record.versions if member.record else {}).items():
            values.setdefault(name, {})[str(version)] = None
    return {name: [*versions] for name, versions in values.items()}


def _scores(member: ComparedRun) -> dict[str, float]:
    return scores_of(member.summary) if member.completed and member.summary else {}


_COLUMNS = ("row", "algorithm", "uses_hidden_labels", "overrides", "seed", "status", "reason")


def _line(row: Variant, member: ComparedRun) -> list[str | float | None]:
    overrides = ", ".join(f"{key}={cell(value)}" for key, value in row.overrides.items())
    scores = _scores(member)
    words = (row.name, row.algorithm, "yes" if row.uses_hidden_labels else "no", overrides)
    return [
        *map(display_text, words),
        member.seed,
        member.status,
        display_text(member.reason),
        *(scores.get(name) for name in SCORES),
    ]


def _made_by(comparison: Comparison) -> str:
    completed = [m for row in comparison.rows for m in row.runs if m.completed]
    versions = _versions(completed)
    packages = ", ".join(f"{name} {' and '.join(seen)}" for name, seen in versions.items())
    lines = [f"Seeds: {', '.join(map(str, comparison.seeds))}"]
    if comparison.fingerprint:
        lines.append(f"Fingerprint of the shared settings: {comparison.fingerprint}")
    if packages:
        lines.append(f"Versions: {packages}")
    return "  \n".join(map(_escaped, lines))


def _escaped(text: str) -> str:
    """Foreign text as it is, with the points and brackets of numbers readable in the source."""
    return re.sub(r"(?<=.)\\([()=+%]|\.(?=\d)|:(?= ))", r"\1", markdown.escaped(text))


def _strict(value: Any) -> Any:
    """A tree that strict JSON and UTF-8 can hold; what is no finite number becomes text."""
    if isinstance(value, Mapping):
        return {display_text(str(key)): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return display_text(str(value))
