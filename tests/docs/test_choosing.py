"""The page on choosing has no measured number that the results lack."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_number_is_in_the_results() -> None:
    results = set(re.findall(r"[0-9][0-9.,–]*[0-9]", (DOCS / "results/results.md").read_text()))
    page = (DOCS / "start/choosing.md").read_text().partition("## Measure on")[0]
    measured = re.findall(r"[0-9]+\.[0-9]+|[0-9]+–[0-9]+", page)
    assert len(measured) > 70
    assert [number for number in measured if number not in results] == []
