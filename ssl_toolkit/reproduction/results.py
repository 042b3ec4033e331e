"""Collect the runs of a table, and set their results beside the published numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from ssl_toolkit import markdown
from ssl_toolkit.comparisons.schema import ComparedRun, ScoreStats, read_failures
from ssl_toolkit.comparisons.statistics import score_stats
from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.config.settings import NOT_COMPARED, flatten
from ssl_toolkit.console import Console
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ToolkitError
from ssl_toolkit.files import write_text
from ssl_toolkit.recipes import Recipe, load_recipes
from ssl_toolkit.reproduction.listing import marked
from ssl_toolkit.text import display_path

JSON, MARKDOWN = "report.json", "report.md"
ACCURACY = "test.accuracy"
NOTHING = "–"
_MACHINE = {
    *NOT_COMPARED,
    "device",
    "devices",
    "precision",
    "compile",
    "weights",
    "recipe",
    "scale",
}
"""Settings that may differ from the recipe without a note."""


class PublishedNumber(Part):
    """A number that this toolkit did not measure."""

    top1: float
    """Test accuracy in percent."""
    by: str
    note: str


class Measured(Part):
    """Results of the completed runs of a row, in percent."""

    top1: dict[int, float]
    """Test accuracy by seed."""
    mean: float
    deviation: float | None
    """Sample standard deviation over seeds; None for one seed."""
    interval: tuple[float, float] | None
    """95 % interval of the mean, Student's t; None for one seed and for equal values."""


class RowResult(Part):
    """A row of a published table: what was published, and what was measured in one comparison."""

    id: str
    method: str
    published: PublishedNumber | None
    scale: float
    """Factor on the steps of the runs; the published number belongs to 1."""
    measured: Measured | None = None
    """None if no run is completed."""
    runs: int = 0
    """Number of runs that were planned; 0 if none was."""
    problems: tuple[str, ...] = ()
    """Reasons of runs without a result."""
    changed: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ from the recipe's, by dotted key."""
    deviations: tuple[str, ...]
    """Differences of the recipe from the publication."""
    comparison: str | None = None
    """Folder of the comparison, relative to the report."""


class Reproduction(Document):
    """Content of ``report.json``: a published table beside the runs of a folder."""

    table: str
    title: str
    paper: str
    rows: tuple[RowResult, ...]


def collect(table: str, folder: Path) -> Reproduction:
    """Read all runs of a table in a folder, whenever they were started.

    Args:
        table: Name of the table.
        folder: Path to the folder with its comparisons.
    """
    recipes = load_recipes()
    measured: dict[str, list[RowResult]] = {}
    for group in sorted(path.parent for path in folder.glob("*/configs")):
        for of_row in _configs(group).values():
            recipe = recipes.get(str(next(iter(of_row.values())).get("recipe")))
            if recipe is not None:
                result = _result(recipe, group, of_row)
                measured.setdefault(recipe.id, []).append(result)
    of_table = [recipe for recipe in recipes.values() if recipe.table == table]
    makers = [recipes[id] for id in measured if recipes[id] not in of_table]
    rows = [
        row
        for recipe in (*makers, *of_table)
        for row in measured.get(recipe.id, [_row(recipe, scale=1.0)])
    ]
    first = of_table[0]
    return Reproduction(table=table, title=first.title, paper=first.paper, rows=tuple(rows))


def _configs(group: Path) -> dict[str, dict[Path, dict[str, Any]]]:
    """Return the configurations of the planned runs of a comparison, by row and folder."""
    rows: dict[str, dict[Path, dict[str, Any]]] = {}
    for path in sorted((group / "configs").glob("*.yaml")):
        slug, _, seed = path.stem.rpartition("-s")
        rows.setdefault(slug, {})[group / "runs" / slug / f"s{seed}"] = yaml.read(path)
    return rows


def _result(recipe: Recipe, group: Path, configs: dict[Path, dict[str, Any]]) -> RowResult:
    failures = {name.partition(" ")[0]: of for name, of in read_failures(group).items()}
    values: dict[int, float] = {}
    problems = []
    for folder, config in configs.items():
        seed = int(config["seed"])
        reason = failures.get(recipe.id, {}).get(seed, "")
        run = ComparedRun.read(recipe.id, seed, folder, reason)
        if ACCURACY in run.scores:
            values[seed] = run.scores[ACCURACY]
        else:
            problems.append(f"seed {seed}: {run.status}{f': {run.reason}' * bool(run.reason)}")
    first = next(iter(configs.values()))
    return _row(
        recipe,
        scale=float(first.get("scale", 1)),
        measured=_in_percent(score_stats(values)) if values else None,
        runs=len(configs),
        problems=tuple(problems),
        changed=_changed(recipe, first),
        comparison=display_path(Path(group.name)),
    )


def _row(recipe: Recipe, *, scale: float, **facts: Any) -> RowResult:
    published = recipe.published
    number = None
    if published is not None:
        number = PublishedNumber(top1=published.top1, by=published.by, note=published.note)
    return RowResult(
        id=recipe.id,
        method=published.method if published else "",
        published=number,
        scale=scale,
        deviations=recipe.deviations,
        **facts,
    )


def _in_percent(stats: ScoreStats) -> Measured:
    return Measured(
        top1={seed: 100 * value for seed, value in stats.values.items()},
        mean=100 * stats.mean,
        deviation=None if stats.deviation is None else 100 * stats.deviation,
        interval=stats.interval and (100 * stats.interval[0], 100 * stats.interval[1]),
    )


def _changed(recipe: Recipe, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that differ from those of its recipe at the same scale."""
    try:
        flags = {"recipe": recipe.id, "scale": config.get("scale", 1)}
        expected = dict(flatten(resolve_config(load_config(flags=flags))[0].tree()))
    except ToolkitError:  # a plugin that is no longer installed
        return {}
    return {
        key: value
        for key, value in flatten(config)
        if key.partition(".")[0] not in _MACHINE
        and key in expected
        and str(expected[key]) != str(value)
    }


def write_results(results: Reproduction, folder: Path) -> None:
    """Write ``report.json`` and ``report.md``, each whole or not at all."""
    results.write(folder / JSON)
    write_text(folder / MARKDOWN, markdown_page(results))


HEADS = (
    *("row", "measured here, %", "n", "95 % interval"),
    *("published by others, %", "published by", "notes"),
)


def _cells(row: RowResult, notes: dict[str, int]) -> list[str]:
    measured, published = row.measured, row.published
    text, interval = NOTHING, NOTHING
    if measured is not None:
        text = f"{measured.mean:.2f}"
        text += f" ± {measured.deviation:.2f}" if measured.deviation is not None else ""
        text += marked(row.scale)
        if measured.interval:
            interval = f"{measured.interval[0]:.2f} to {measured.interval[1]:.2f}"
    count = len(measured.top1) if measured else 0
    numbers = [notes.setdefault(note, len(notes) + 1) for note in _notes(row)]
    return [
        " ".join(filter(None, [row.id, row.method])) + marked(row.scale),
        text,
        f"{count} of {row.runs}" if count < row.runs else str(count) if row.runs else "not run",
        interval,
        f"{published.top1:.2f}" if published else NOTHING,
        published.by if published else NOTHING,
        " ".join(f"[{number}]" for number in numbers),
    ]


def _notes(row: RowResult) -> Iterator[str]:
    if row.scale != 1:
        yield (
            f"at scale {row.scale:g}: steps, schedules and ramps are {row.scale:g} of the "
            "recipe's, so the published number is of a longer training"
        )
    if row.changed:
        changed = ", ".join(f"{key}={value}" for key, value in row.changed.items())
        yield f"measured with other settings than the recipe's: {changed}"
    for problem in row.problems:
        yield f"{row.id}, {problem}"
    if row.published and row.published.note:
        yield f"published: {row.published.note}"
    for deviation in row.deviations:
        yield f"the recipe differs from the publication: {deviation}"


def _table(results: Reproduction) -> tuple[list[list[str]], list[str]]:
    notes: dict[str, int] = {}
    rows = [_cells(row, notes) for row in results.rows]
    return rows, [f"[{number}] {note}" for note, number in notes.items()]


def _title(results: Reproduction) -> str:
    scales = sorted({row.scale for row in results.rows if row.runs and row.scale != 1})
    scaled = f", runs{' and'.join(map(marked, scales))}" if scales else ""
    return f"{results.table}: {results.title} ({results.paper}){scaled}"


def markdown_page(results: Reproduction) -> str:
    """Return the table as Markdown."""
    rows, notes = _table(results)
    folders = dict.fromkeys(row.comparison for row in results.rows if row.comparison)
    parts = [
        f"# {markdown.escaped(_title(results))}",
        "Published numbers were measured by others. 95 % intervals are of the mean over seeds: "
        "Student's t on the logit scale; ± is the sample standard deviation over seeds.",
        markdown.table(HEADS, [[*map(markdown.escaped, row)] for row in rows]),
        "  \n".join(map(markdown.escaped, notes)),
        markdown.bullets(f"[{name}]({name}/comparison.md)" for name in folders),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def show_results(results: Reproduction, console: Console) -> None:
    """Print the rows that were run, a line each, then the notes."""
    console.say(_title(results), important=True)
    run = results.model_copy(update={"rows": tuple(row for row in results.rows if row.runs)})
    rows, notes = _table(run)
    for cells in rows:
        name, *values = cells
        parts = [f"{head} {cell}" for head, cell in zip(HEADS[1:], values, strict=True) if cell]
        console.say(f"{name}: {', '.join(parts)}", important=True)
    for note in notes:
        console.say(note, important=True)
