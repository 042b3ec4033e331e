"""Write the pages that are made from the code, and copies of pages outside `docs/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GENERATED = "generated"
"""Folder of `docs/` with pages that are written by each build; git ignores it."""

ORPHAN = "---\norphan: true\n---\n\n"
"""Front matter of a page that other pages link to, but that the navigation does not have."""

INDEXES = (
    ("generated/commands/index", "Command line", "look up a command and its options"),
    (
        "generated/algorithms/index",
        "Algorithms",
        "look up an algorithm: its method, options, profiles, recipes and measured rows",
    ),
    ("generated/addons/index", "Add-ons", "look up an add-on for uneven classes"),
    ("generated/augmenters/index", "Augmenters", "look up an augmenter"),
    ("generated/backbones/index", "Backbones", "look up a backbone for small images"),
    ("generated/datasets/index", "Data sets", "look up a data set and its defaults"),
    ("generated/loggers/index", "Loggers by name", "look up a logger"),
    ("generated/launchers/index", "Launchers by name", "look up the options of a launcher"),
    ("generated/metrics", "Metrics", "look up a metric: its meaning, and the file that has it"),
    ("generated/api/index", "Python API", "look up a class or function"),
)
"""Docname, title and purpose of the generated pages that the navigation shows."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the docname and the content of each generated page."""
    from site_pages import api, commands, metrics, plugins
    from site_pages.sources import DOCS, ROOT, copies, with_site_links

    listed = (DOCS / "index.md").read_text(encoding="utf-8")
    for path, name in copies().items():
        text = with_site_links(path.read_text(encoding="utf-8"), path, name)
        orphan = f"(../{path.relative_to(ROOT).as_posix()})" not in listed
        yield name, ORPHAN * orphan + text
    for module in (commands, plugins, metrics, api):
        for name, text in module.pages():
            yield f"{GENERATED}/{name}", text


def write_pages(docs: Path) -> None:
    """Write the generated pages, and delete those that are no longer made."""
    names = set()
    for name, text in pages():
        path = docs / f"{name}.md"
        names.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in (docs / GENERATED).rglob("*.md"):
        if path not in names:
            path.unlink()
