"""Read the recipes that come with the package."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ssl_toolkit import registry
from ssl_toolkit.config import yaml
from ssl_toolkit.config.faults import Faults
from ssl_toolkit.config.merging import Tree, deep
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.recipes.schema import Grid, Published, RecipeFile, Row
from ssl_toolkit.registry import did_you_mean

AUTOMATIC_KEYS = ("algo", "backbone", "pretrained", "dataset")
"""Settings by which a row that is ``automatic`` is chosen."""


@dataclass(frozen=True)
class Recipe:
    """The configuration of one row of a published table."""

    id: str
    """``TABLE/NAME``."""
    table: str
    title: str
    """Of the table."""
    paper: str
    """The paper or the benchmark that the table is from."""
    settings: Tree
    """Keys as in a configuration file; plain values are text."""
    published: Published | None
    deviations: tuple[str, ...]
    weights_of: str | None
    """The row whose run makes the initial weights."""
    automatic: bool

    @property
    def origin(self) -> str:
        """The name of the recipe in messages."""
        return f"recipe {self.id}"

    def describe(self, scale: float = 1) -> str:
        """Return one line about the recipe and the scale at which it runs."""
        hint = " (--recipe none turns it off)" if self.automatic else ""
        return f"recipe {recipe_name(self.id, scale)}: {self.title}, {self.paper}{hint}"


def recipe_name(row: str, scale: float) -> str:
    """Return the ID of a recipe, with the scale if it is shortened."""
    return row if scale == 1 else f"{row} at scale {scale:g}"


@functools.cache
def load_recipes() -> Mapping[str, Recipe]:
    """Return all recipes by their IDs, in the order of the files.

    Raises:
        ConfigError: a file of recipes is invalid.
    """
    recipes: dict[str, Recipe] = {}
    for path in sorted((yaml.configs_dir() / "recipes").glob("*.yaml")):
        for recipe in read_recipes(path):
            if recipe.id in recipes:
                raise ConfigError(f"{path}: {recipe.id}: another row has this ID; rename one")
            recipes[recipe.id] = recipe
    for recipe in recipes.values():
        if recipe.weights_of is not None and recipe.weights_of not in recipes:
            raise ConfigError(
                f"{recipe.origin}: weights_of: {_unknown(recipe.weights_of, recipes)}"
            )
    return recipes


def find_recipe(row: str) -> Recipe:
    """Return a recipe by its ID.

    Raises:
        ConfigError: there is none; the message suggests near ones.
    """
    recipes = load_recipes()
    if row not in recipes:
        raise ConfigError(
            f"--recipe {_unknown(row, recipes)}; `ssl-toolkit reproduce` lists the tables"
        )
    return recipes[row]


def read_recipes(path: Path) -> Iterator[Recipe]:
    """Iterate over the recipes of a file, without the options of algorithms that rows don't run.

    Args:
        path: a YAML file; the JSON file that it names is beside it.

    Raises:
        ConfigError: names the file and the key.
    """
    file = _read_file(path)

    @functools.cache
    def parts_of(other: str) -> dict[str, Tree]:
        return _read_file(path.with_name(f"{other}.yaml")).parts if other else file.parts

    cells = _published(path.parent / file.published) if file.published else {}
    algorithms = {entry.name for entry in registry.entries("algorithms")}
    for name, row in [*file.rows.items(), *itertools.chain(*map(_rows_of_grid, file.grids))]:
        recipe = _recipe(path, file, parts_of, name, row, cells)
        others = algorithms - {recipe.settings["algo"]}
        settings = {key: value for key, value in recipe.settings.items() if key not in others}
        yield replace(recipe, settings=settings)


def _read_file(path: Path) -> RecipeFile:
    tree = yaml.read(path)
    faults = Faults({(key,): str(path) for key in tree}, "")
    file = faults.validate(RecipeFile, tree)
    faults.stop()
    assert file is not None
    return file


def _recipe(
    path: Path,
    file: RecipeFile,
    parts_of: Callable[[str], dict[str, Tree]],
    name: str,
    row: Row,
    cells: Mapping[str, Published],
) -> Recipe:
    table, _, rest = name.partition("/")
    if table not in file.tables or not rest:
        raise ConfigError(
            f"{path}: rows.{name}: must be TABLE/NAME with a table of `tables`"
            f"{did_you_mean(table, file.tables)}"
        )
    settings: Tree = {}
    deviations = [*file.deviations]
    for part in row.parts:
        other, _, bare = part.rpartition(".")
        if bare not in (parts := parts_of(other)):
            raise ConfigError(f"{path}: rows.{name}: parts: {_unknown(part, parts)}")
        piece = dict(parts[bare])
        deviations += piece.pop("deviations", [])
        settings = deep(settings, piece)
    settings = deep(settings, row.settings)
    if "algo" not in settings:
        raise ConfigError(f"{path}: rows.{name}: algo: no part sets the algorithm")
    return Recipe(
        name,
        table,
        file.tables[table],
        file.title,
        settings,
        row.published or cells.get(name),
        (*deviations, *row.deviations),
        row.weights_of,
        row.automatic,
    )


def _rows_of_grid(grid: Grid) -> Iterator[tuple[str, Row]]:
    for names in itertools.product(*grid.axes):
        name = "-".join(names)
        top1 = grid.published.get(name)
        published = None if top1 is None else Published(top1=top1, by=grid.by)
        yield f"{grid.table}/{name}", Row(parts=[*grid.parts, *names], published=published)


def _published(path: Path) -> dict[str, Published]:
    """Return the numbers in a JSON file, by ID of the row."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        keys = Published.model_fields
        return {
            cell["id"]: Published(**{key: cell[key] for key in keys if key in cell})
            for cell in cells
        }
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path}: published: no list of valid cells ({error})") from error


def _unknown(name: str, known: Mapping[str, object]) -> str:
    return f"{name}: not found{did_you_mean(name, known)}"
