"""Find published tables and their rows; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ssl_toolkit.errors import ConfigError
from ssl_toolkit.recipes import Recipe, load_recipes
from ssl_toolkit.registry import did_you_mean

ALL = "all"
"""In ``--row``: every row of the table."""


def list_tables() -> Iterator[str]:
    """Yield a line for each table: name, number of rows, title and paper."""
    tables: dict[str, list[Recipe]] = {}
    for recipe in load_recipes().values():
        tables.setdefault(recipe.table, []).append(recipe)
    width = max(map(len, tables), default=0)
    for name, rows in tables.items():
        count = f"{len(rows)} row{'s' * (len(rows) > 1)}"
        yield f"{name:{width}}  {count:>8}  {rows[0].title} ({rows[0].paper})"


def find_rows(table: str, ids: Sequence[str]) -> list[Recipe]:
    """Return rows of a table in its order.

    Args:
        table: Name of the table.
        ids: IDs of rows, with or without the table, or `ALL`; empty for every row.

    Raises:
        ConfigError: The table or a row is not found.
    """
    recipes = [recipe for recipe in load_recipes().values() if recipe.table == table]
    if not recipes:
        tables = [*dict.fromkeys(recipe.table for recipe in load_recipes().values())]
        raise ConfigError(
            f"table {table}: not found{did_you_mean(table, tables)}; `ssl-toolkit reproduce` lists "
            "the tables"
        )
    known = [recipe.id for recipe in recipes]
    wanted = {one if one == ALL or "/" in one else f"{table}/{one}" for one in ids}
    if unknown := sorted(wanted - {ALL, *known}):
        raise ConfigError(
            [
                f"--row {one}: not found in table {table}{did_you_mean(one, known)}; "
                f"`ssl-toolkit reproduce {table}` lists its rows"
                for one in unknown
            ]
        )
    return [recipe for recipe in recipes if not wanted or wanted & {ALL, recipe.id}]
