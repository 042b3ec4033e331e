"""Collect the runs of a table, and set their results beside the published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ssl_toolkit.comparisons.schema import ComparedRun, ScoreStats, read_failures
from ssl_toolkit.comparisons.statistics import score_stats
from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.config.merging import Tree
from ssl_toolkit.config.settings import NOT_COMPARED, flatten
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ModelError, ToolkitError
from ssl_toolkit.recipes import Recipe, load_recipes
from ssl_toolkit.runs.check import refuse_contradictions
from ssl_toolkit.text import display_path

ACCURACY = "test.accuracy"
_MACHINE = {
    *NOT_COMPARED,
    *("device", "devices", "precision", "compile", "weights", "recipe", "scale"),
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
        for slug, of_row in _configs(group).items():
            recipe = recipes.get(str(next(iter(of_row.values())).get("recipe")))
            if recipe is not None:
                result = _result(recipe, group, slug, of_row)
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


def _configs(group: Path) -> dict[str, dict[int, Tree]]:
    """Return the configurations of the planned runs of a comparison, by row and seed."""
    rows: dict[str, dict[int, Tree]] = {}
    for path in sorted((group / "configs").glob("*.yaml")):
        slug, _, seed = path.stem.rpartition("-s")
        rows.setdefault(slug, {})[int(seed)] = yaml.read(path)
    return rows


def _result(recipe: Recipe, group: Path, slug: str, configs: Mapping[int, Tree]) -> RowResult:
    failures = {name.partition(" ")[0]: of for name, of in read_failures(group).items()}
    values: dict[int, float] = {}
    problems = []
    for seed in sorted(configs):
        reason = failures.get(recipe.id, {}).get(seed, "")
        run = ComparedRun.read(recipe.id, seed, group / "runs" / slug / f"s{seed}", reason)
        if fault := _contradiction(run):
            problems.append(f"seed {seed}: {fault}")
        elif ACCURACY in run.scores:
            values[seed] = run.scores[ACCURACY]
        else:
            problems.append(f"seed {seed}: {run.status}{f': {run.reason}' * bool(run.reason)}")
    first = next(iter(configs.values()))
    source = group / "configs" / f"{slug}-s{first['seed']}.yaml"
    return _row(
        recipe,
        scale=float(first.get("scale", 1)),
        measured=_in_percent(score_stats(values)) if values else None,
        runs=len(configs),
        problems=tuple(problems),
        changed=_changed(recipe, float(first.get("scale", 1)), source),
        comparison=display_path(Path(group.name)),
    )


def _contradiction(run: ComparedRun) -> str:
    """Return how the files of a completed run contradict each other; empty if they do not."""
    try:
        refuse_contradictions([run.folder] if run.completed else [])
    except ModelError as error:
        return error.messages[0]
    return ""


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


def _changed(recipe: Recipe, scale: float, config: Path) -> Tree:
    """Return the settings of a run that differ from those of its recipe at the same scale."""
    try:
        planned = load_config(flags={"recipe": recipe.id, "scale": scale})
        expected = dict(flatten(resolve_config(planned)[0].tree()))
        actual = flatten(load_config([config]).tree())
    except ToolkitError:  # a plugin that is no longer installed
        return {}
    return {
        key: value
        for key, value in actual
        if key.partition(".")[0] not in _MACHINE and expected.get(key, value) != value
    }
