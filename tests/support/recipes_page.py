"""Write the table of docs/how-to/recipes.md: ``python tests/support/recipes_page.py``."""

from __future__ import annotations

from collections.abc import Iterator

from ssl_toolkit.recipes import Recipe, load_recipes


def lines() -> Iterator[str]:
    """The rows of a Markdown table, one for each table with recipes."""
    yield "| table | rows | with a published number | content | paper or benchmark |"
    yield "|---|---|---|---|---|"
    tables: dict[str, list[Recipe]] = {}
    for recipe in load_recipes().values():
        tables.setdefault(recipe.table, []).append(recipe)
    for table, rows in tables.items():
        numbers = sum(row.published is not None for row in rows)
        first = rows[0]
        yield f"| `{table}` | {len(rows)} | {numbers} | {first.title} | {first.paper} |"


if __name__ == "__main__":
    print("\n".join(lines()))
