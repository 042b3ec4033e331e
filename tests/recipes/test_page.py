"""docs/how-to/recipes.md lists the tables and shows the form of a file."""

from __future__ import annotations

import re
from pathlib import Path

import recipes_page

from ssl_toolkit.recipes.load import read_recipes

PAGE = (Path(__file__).parents[2] / "docs/how-to/recipes.md").read_text("utf-8")


def test_the_page_lists_all_tables() -> None:
    assert "\n".join(recipes_page.lines()) in PAGE, (
        "replace the table by the output of: python tests/support/recipes_page.py"
    )


def test_the_example_of_the_page_is_a_file_of_recipes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(example, "utf-8")
    rows = {recipe.id: recipe for recipe in read_recipes(tmp_path / "mine.yaml")}
    assert [*rows] == ["mytable/best", "mytable/labels40-simple", "mytable/labels40-fixmatch"]
    assert rows["mytable/best"].settings["simple"] == {"strong_views": "7"}
