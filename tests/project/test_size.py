"""The code stays as small as docs/explanation/design.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from code_size import CORE, ROOT, size_of, sizes

TRAINING = ("interfaces", "config", "engine", "augment", "models")
ROW = re.compile(r"^\| ([a-z ]+) \| ([0-9,]+) \| ", re.MULTILINE)


def limits() -> dict[str, int]:
    """The table of the section on size."""
    page = (ROOT / "docs/explanation/design.md").read_text("utf-8")
    section = page.split("## Size")[1].split("\n## ")[0]
    return {part: int(limit.replace(",", "")) for part, limit in ROW.findall(section)}


LIMITS = limits()


def test_a_line_of_code_contains_a_token() -> None:
    size = size_of(
        '"""Two\nlines."""\n\n# why\nx = (\n    1\n)  # told\n\n\ndef f():\n    "Doc."\n'
    )
    assert (size["lines"], size["code"], size["docstrings"], size["statements"]) == (11, 4, 3, 4)


def test_every_part_has_a_limit() -> None:
    folders = {path.parent.name for path in CORE.glob("*/__init__.py")}
    assert LIMITS.keys() == folders | {"single files", "plugins"}


@pytest.mark.parametrize("part", LIMITS)
def test_a_part_is_below_its_limit(part: str) -> None:
    code = sizes()[part]["code"]
    assert code <= LIMITS[part], "make it shorter, or raise the limit in docs/explanation/design.md"


def test_the_training_code_is_below_its_limit() -> None:
    result = sizes()
    assert sum(result[part]["code"] for part in TRAINING) < 9060


def test_files_are_short() -> None:
    files = {
        path: len(path.read_text("utf-8").splitlines())
        for folder in (CORE, ROOT / "plugins")
        for path in folder.rglob("*.py")
    }
    assert {path.name for path, lines in files.items() if lines > 400} == set()


@pytest.mark.parametrize("folder", sorted((ROOT / "plugins").iterdir()), ids=lambda path: path.name)
def test_a_plugin_is_short(folder: Path) -> None:
    for path in folder.rglob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) < 250, path.name
