"""Damaged and foreign input brings out nothing but the documented exceptions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import fuzz

COUNT = 200


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_only_documented_exceptions_come_out(name: str) -> None:
    ends = fuzz.fuzz(name, COUNT)
    assert ends.total() >= COUNT
    # Neither all nor none of the inputs may be refused: then nothing would be tried.
    assert len(ends) > 1
