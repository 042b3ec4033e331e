"""The page on step parity lists every algorithm with its file, size and profiles."""

from __future__ import annotations

import re
from pathlib import Path

from parity_page import INTRODUCTION, facts

PAGE = Path(__file__).parents[2] / "docs/explanation/parity.md"
NUMBERS = re.compile(r"( (\de[+-]\d\d|–) \|){4}")


def test_the_page_lists_every_algorithm_with_its_size_and_profiles() -> None:
    text = PAGE.read_text("utf-8")
    assert text.startswith(INTRODUCTION)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    expected = dict(facts())
    cells = [row[: NUMBERS.search(row).start()] if NUMBERS.search(row) else row for row in rows]
    message = "run: python tests/support/parity_page.py > docs/explanation/parity.md"
    assert cells == [*expected.values()], message
    assert "|  |" not in text


def test_the_deviations_on_the_page_are_those_of_rounding() -> None:
    numbers = [float(n) for n in re.findall(r"\b\de-\d\d\b", PAGE.read_text("utf-8"))]
    assert len(numbers) > 60
    assert max(numbers) < 1e-9
