"""Write each page also as Markdown, and `llms.txt`, which lists them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

from site_pages.generate import ORPHAN
from site_pages.sources import DOCS, ROOT, sections, site_text

TOCTREE = re.compile(r"^```\{toctree\}\n.*?^```\n?", re.DOTALL | re.MULTILINE)
CURRENT = re.compile(r"^```\{py:currentmodule\}.*\n```\n?", re.MULTILINE)
OBJECT = re.compile(r"^(:{4,5})\{py:\w+\} (.+)$")
OPTION = re.compile(r"^:(type|classmethod|staticmethod):")


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the Markdown of every page beside its HTML."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for docname in sorted(app.env.found_docs):
        source = DOCS / f"{docname}.md"
        text = plain(site_text(docname, source.read_text(encoding="utf-8")))
        path = out / f"{docname}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (out / "llms.txt").write_text(contents(), encoding="utf-8")


def plain(text: str) -> str:
    """Return a page without the directives of the site."""
    lines = []
    text = CURRENT.sub("", TOCTREE.sub("", text.removeprefix(ORPHAN)))
    for line in text.splitlines():
        if match := OBJECT.match(line):
            lines.append(f"{'##' if len(match[1]) == 5 else '###'} `{match[2]}`")
        elif not re.fullmatch(r":{4,5}", line) and not OPTION.match(line):
            lines.append(line.replace("{py:obj}`", "`"))
    return "\n".join(lines).strip() + "\n"


def contents() -> str:
    """Return the list of the pages as Markdown, for readers that are programs."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    index = site_text("index", (DOCS / "index.md").read_text(encoding="utf-8"))
    lines = [f"# {project['name']}", "", f"> {project['description']}", ""]
    for heading, pages in sections(index):
        lines += [f"## {heading}", ""]
        lines += [f"- [{title}]({link}): {purpose}" for purpose, title, link in pages]
        lines.append("")
    return "\n".join(lines)
