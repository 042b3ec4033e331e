"""docs/how-to/loggers.md lists every built-in logger."""

from __future__ import annotations

import re
from pathlib import Path

from ssl_toolkit import registry

PAGE = (Path(__file__).parents[2] / "docs/how-to/loggers.md").read_text(encoding="utf-8")


def test_every_built_in_logger_is_described() -> None:
    names = {entry.name for entry in registry.entries("loggers") if entry.built_in}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == names
