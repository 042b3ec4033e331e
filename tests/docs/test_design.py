"""The page on design shows the packages that there are, in the order that the imports have."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/design.md").read_text("utf-8")
SECTION = PAGE.split("\n## Packages\n")[1].split("\n## ")[0]


def ranks() -> dict[str, int]:
    """Return the ranks that the test of the architecture holds."""
    source = (ROOT / "tests/project/test_architecture.py").read_text("utf-8")
    values = {
        node.targets[0].id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    result: dict[str, int] = ast.literal_eval(values["RANKS"])
    return result


def test_the_table_has_the_ranks_of_the_imports() -> None:
    shown = {
        name.split()[-1]: int(rank)  # "the scikit-learn estimator" is `estimator`
        for rank, names in re.findall(r"^\| (\d+) \| (.+) \|$", SECTION, re.MULTILINE)
        for name in names.split(", ")
    }
    assert shown == ranks()


def test_every_package_is_described() -> None:
    packages = {path.parent.name for path in (ROOT / "ssl_toolkit").glob("*/__init__.py")}
    block = SECTION.split("```")[1]
    assert {name for name in packages if not re.search(rf"\b{name}\b", block)} == set()
