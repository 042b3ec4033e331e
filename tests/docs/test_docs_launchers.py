"""docs/how-to/launchers.md lists every built-in launcher and its options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ssl_toolkit import registry

PAGE = (Path(__file__).parents[2] / "docs/how-to/launchers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["local", "ray", "slurm"])
def test_every_option_of_a_launcher_is_described(name: str) -> None:
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    described = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    assert described == {*registry.load("launchers", name).Config.model_fields}


def test_every_built_in_launcher_has_a_section() -> None:
    names = {entry.name for entry in registry.entries("launchers") if entry.built_in}
    assert names <= {*re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
