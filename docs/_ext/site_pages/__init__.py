"""Sphinx extension of this site: pages made from the code, links, and Markdown copies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from site_pages.generate import write_pages
from site_pages.sources import DOCS, site_text

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def _generate(app: Sphinx) -> None:
    write_pages(DOCS)


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    content[0] = site_text(docname, content[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the events of the build."""
    from pygments.lexers import JsonLexer, TextLexer

    from site_pages import markdown_copies, references

    if Path(app.srcdir) != DOCS:
        raise RuntimeError(f"the source of this site is {DOCS}")
    for name in ("csv", "list"):  # GitHub and the tests know these languages; Pygments doesn't
        app.add_lexer(name, TextLexer)
    app.add_lexer("jsonl", JsonLexer)
    app.connect("builder-inited", _generate)
    app.connect("source-read", _read)
    app.connect("missing-reference", references.external)
    app.add_post_transform(references.LinkNames)
    app.connect("build-finished", markdown_copies.write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
