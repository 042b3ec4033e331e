"""Every link of every page resolves, anchors included, and docs/index.md lists every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from words import pages

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    pages()
    + [
        path
        for folder in ("plugins", "examples", ".github")
        for path in (ROOT / folder).rglob("*.md")
    ]
)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    wrong = []
    for link in LINK.findall(text_of(page)):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


def test_pages_and_links_are_found() -> None:
    assert len(PAGES) > 25
    assert sum(len(LINK.findall(text_of(page))) for page in PAGES) > 130


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `--two`\n[a](#one---two) [b](#one) [c](gone.md) ![d](page.md#one)\n")
    assert broken(page) == ["#one", "gone.md", "page.md#one"]


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs/index.md"
    listed = {(index.parent / link).resolve() for link in LINK.findall(text_of(index))}
    assert {*pages()} - {index} <= listed
