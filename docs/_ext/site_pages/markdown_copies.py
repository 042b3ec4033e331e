"""Write each page also as Markdown, and `llms.txt`, which lists them."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

from site_pages.generate import ORPHAN
from site_pages.sources import DOCS, LINK, ROOT, outside_code, sections, site_text

TOCTREE = re.compile(r"^```\{toctree\}\n.*?^```\n?", re.DOTALL | re.MULTILINE)
CURRENT = re.compile(r"^```\{py:currentmodule\}.*\n```\n?", re.MULTILINE)
OBJECT = re.compile(r"^(:{4,5})\{py:\w+\} (.+)$")
FILES = "files"
OPTION = re.compile(r"^:(type|classmethod|staticmethod):")


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the Markdown of every page beside its HTML."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for docname in sorted(app.env.found_docs):
        source = DOCS / f"{docname}.md"
        text = plain(site_text(docname, source.read_text(encoding="utf-8")))
        text = with_files(text, source, out)
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


def with_files(text: str, source: Path, out: Path) -> str:
    """Return a page whose links to files lead to copies of them in the site.

    Args:
        text: Markdown of the page.
        source: File that its links are relative to.
        out: Folder of the site; a file of `docs/` has the same place there, others are in `files/`.
    """

    def replaced(match: re.Match[str]) -> str:
        mark, label, link = match.groups()
        target = (source.parent / link).resolve()
        if ":" in link or target.suffix == ".md" or not target.is_file():
            return match[0]
        inside = target.is_relative_to(DOCS)
        place = out / target.relative_to(DOCS) if inside else out / FILES / target.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, place)
        here = (out / source.relative_to(DOCS)).parent
        return f"{mark}[{label}]({os.path.relpath(place, here)})"

    return outside_code(text, LINK, replaced)


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
