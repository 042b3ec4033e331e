"""The figures show the current packages and the recorded numbers, and pages use them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from figures import FIGURES, PANELS, architecture, curves, ranks, read_curves

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
IMAGES = sorted(path for path in FIGURES.iterdir() if path.suffix in {".svg", ".png"})


def test_the_architecture_is_that_of_the_code() -> None:
    drawn = architecture()
    assert (FIGURES / "architecture.svg").read_text("utf-8") == drawn
    names = {text.text for text in ElementTree.fromstring(drawn).iter() if text.text}
    assert ranks().keys() <= names


def test_the_curves_are_those_of_the_recorded_numbers() -> None:
    table = FIGURES / "learning-curves.csv"
    assert (FIGURES / "learning-curves.svg").read_text("utf-8") == curves(table)
    names, metrics = read_curves(table)
    assert metrics.keys() == PANELS.keys()
    assert len(names) == 3
    for name, curve in metrics["validation.accuracy"].items():
        assert name in names
        assert curve.seeds == 2
        assert (curve.low <= curve.mean).all()
        assert (curve.mean <= curve.high).all()


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_an_image_is_small_and_a_page_shows_it(image: Path) -> None:
    assert image.stat().st_size < 150_000
    link = re.compile(rf"!\[[^\]]{{20,}}\]\([^)]*figures/{re.escape(image.name)}\)")
    assert any(link.search(page.read_text("utf-8")) for page in PAGES)
