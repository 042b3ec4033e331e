"""Turn rows of published tables into comparisons, one for each split."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssl_toolkit import registry
from ssl_toolkit.config.comparison import (
    ComparisonConfig,
    PlannedRow,
    load_comparison,
)
from ssl_toolkit.config.loading import ResolvedConfig
from ssl_toolkit.config.settings import keys_behind, shared_keys
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.recipes import Recipe, find_recipe, load_recipes


@dataclass(frozen=True)
class TableRow:
    """A row of a published table, with its configuration."""

    recipe: Recipe
    config: ResolvedConfig
    planned: PlannedRow
    """The row of the comparison."""
    seeds: tuple[int, ...]
    only_for_weights: bool = False
    """True if it was not requested, but makes weights for a row that was."""

    @property
    def needs(self) -> str | None:
        """The row whose run makes the initial weights; None if they are set or none are needed."""
        return None if self.config.settings.weights else self.recipe.weights_of

    def tree(self) -> dict[str, Any]:
        """Return the keys of the row in the file of its comparison."""
        settings = self.planned.config.settings
        keys = {key: getattr(settings, key) for key in ("algo", "recipe", "root", "weights")}
        return {key: value for key, value in keys.items() if value is not None}

    def starting_from(self, weights: Path) -> TableRow:
        """Return the row with these initial weights."""
        planned = replace(
            self.planned, config=self.planned.config.with_settings(weights=str(weights))
        )
        return replace(self, planned=planned, config=resolve_config(planned.config)[0])


@dataclass(frozen=True)
class Group:
    """Rows that share a split, and form a comparison."""

    folder: Path
    rows: tuple[TableRow, ...]
    requested: ComparisonConfig
    """The comparison of all rows that were requested, which is not run."""

    @property
    def comparison(self) -> ComparisonConfig:
        """The comparison of the rows; they may differ in what their recipes set differently."""
        planned = tuple(row.planned for row in self.rows)
        names = [row.name for row in planned]
        settings, seeds = self.requested.settings, [*self.rows[0].seeds]
        update: dict[str, Any] = {
            "name": f"{settings.name or self.folder.parent.name}: {self.folder.name}",
            "output": str(self.folder),
            "seeds": seeds,
            "baseline": settings.baseline if settings.baseline in names else None,
            "allow_different": [*settings.allow_different, *_differing(self.rows)],
        }
        sections = {row.config.section for row in planned}
        left_out = {entry.name for entry in registry.entries("algorithms")} - sections
        left_out |= {"root", "weights"}  # of each row
        tree = {k: v for k, v in self.requested.tree.items() if k not in left_out}
        tree |= update | {"rows": {row.planned.name: row.tree() for row in self.rows}}
        return replace(
            self.requested, settings=settings.model_copy(update=update), rows=planned, tree=tree
        )

    def run_folder(self, row: TableRow, seed: int) -> Path:
        """Return the path to a run of a row."""
        return self.folder / "runs" / row.planned.slug / f"s{seed}"


def load_rows(
    recipes: Sequence[Recipe],
    files: Sequence[Path] = (),
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
) -> tuple[ComparisonConfig, list[TableRow]]:
    """Load the configurations of rows, and of the rows that make their weights.

    Args:
        recipes: Rows of a table.
        files: As for `load_comparison`.
        flags: As for `load_comparison`.
        sets: As for `load_comparison`.

    Returns:
        The comparison of all rows, and the rows; those that only make weights have one seed.

    Raises:
        UserError: As `load_comparison`, or a file adds rows of its own.
    """
    comparison, rows = _load(recipes, files, flags or {}, sets, ())
    known = {recipe.id for recipe in recipes}
    needed = dict.fromkeys(row.needs for row in rows if row.needs and row.needs not in known)
    if needed:
        makers = [find_recipe(name) for name in needed]
        comparison, rows = _load([*makers, *recipes], files, flags or {}, sets, needed)
    return comparison, rows


def _load(
    recipes: Sequence[Recipe],
    files: Sequence[Path],
    flags: Mapping[str, Any],
    sets: Sequence[str],
    needed: Container[str],
) -> tuple[ComparisonConfig, list[TableRow]]:
    by_id = {recipe.id: recipe for recipe in recipes}
    trees = {id: {"algo": one.settings["algo"], "recipe": id} for id, one in by_id.items()}
    baseline, from_others = flags.get("baseline"), any(one.weights_of for one in recipes)
    flags = {**flags, "rows": trees, "probe": False}
    comparison = load_comparison(files, flags, sets)
    settings = comparison.settings
    if settings.curve:
        raise ConfigError("reproduce runs rows of its table; leave several numbers of labels out")
    if settings.algos or settings.sweep or len(comparison.rows) > len(recipes):
        raise ConfigError("reproduce runs rows of its table only; leave algos, rows and sweep out")
    rows = []
    for planned in comparison.rows:
        recipe = by_id[planned.name]
        name = _name(recipe, planned.config.settings.scale)
        if baseline == recipe.id:
            settings = settings.model_copy(update={"baseline": name})
        config = planned.config.with_settings(root=_root(planned))
        if from_others and recipe.weights_of is None:
            config = config.with_settings(weights=None)  # a row that starts from scratch
        planned = replace(planned, name=name, config=config)
        only = recipe.id in needed
        seeds = tuple(settings.seeds[:1] if only else settings.seeds)
        rows.append(TableRow(recipe, resolve_config(config)[0], planned, seeds, only))
    return replace(comparison, settings=settings), rows


def _name(recipe: Recipe, scale: float) -> str:
    """Return the name of a row in its comparison."""
    method = recipe.published.method if recipe.published else ""
    return " ".join(filter(None, [recipe.id, method, f"(scale {scale:g})" if scale != 1 else ""]))


def _root(row: PlannedRow) -> str | None:
    """Return the folder of the data set: one of its name in ``root`` if it exists, else that."""
    root, dataset = row.config.settings.root, row.config.settings.dataset
    if root is None or dataset is None:
        return root
    folder = Path(root) / dataset
    return str(folder) if folder.is_dir() else root


def default_folder(table: str, comparison: ComparisonConfig) -> Path:
    """Return the output folder: that of the setting, or one by table and scale."""
    scale = comparison.rows[0].config.settings.scale
    suffix = f"-scale-{scale:g}" if scale != 1 else ""
    return Path(comparison.settings.output or f"runs/reproduce-{table}{suffix}").absolute()


def group_rows(rows: Iterable[TableRow], requested: ComparisonConfig, folder: Path) -> list[Group]:
    """Group rows by their split; those that make weights for others come first, on their own.

    Args:
        rows: Rows of a table.
        requested: The comparison that they are from.
        folder: Path to the output folder.
    """
    makers = {recipe.weights_of for recipe in load_recipes().values()}
    groups: dict[tuple[bool, bool, str], list[TableRow]] = {}
    for row in rows:
        is_last = row.recipe.id not in makers
        name = f"{'' if is_last else 'weights-'}{_split_name(row.config)}"
        groups.setdefault((is_last, row.only_for_weights, name), []).append(row)
    return [
        Group(folder / name, tuple(of_split), requested)
        for (_, _, name), of_split in sorted(groups.items(), key=lambda item: item[0][0])
    ]


def _split_name(config: ResolvedConfig) -> str:
    """Return a name for the split of a run, the same for rows with equal settings of it."""
    settings = config.settings
    values = {key: getattr(settings, key) for key in keys_behind("split") if "." not in key}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
    data = Path(settings.data).stem if settings.data else settings.dataset
    labels = "all-labels"
    if settings.num_labels:
        labels = f"{settings.num_labels}-labels"
    elif settings.labels_per_class:
        labels = f"{settings.labels_per_class}-per-class"
    return re.sub(r"[^\w.=-]+", "_", f"{data}-{labels}-{digest[:6]}")


def _differing(rows: Sequence[TableRow]) -> list[str]:
    """Return the shared settings in which rows differ.

    Flags and files apply to all rows alike, so only recipes make rows different.
    """
    trees = [shared_keys(row.config.tree(), row.config.section) for row in rows]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    values = {key: {json.dumps(tree.get(key), default=str) for tree in trees} for key in keys}
    return [key for key, different in values.items() if len(different) > 1]
