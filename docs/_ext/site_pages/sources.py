"""Turn the pages of the repository into pages of the site.

The pages are plain Markdown that GitHub renders, without directives. On the site, links out of
`docs/` lead to copies of the pages there, or to the repository, and the tables of `index.md` are
also the navigation.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from site_pages.generate import GENERATED, INDEXES

DOCS = Path(__file__).parents[2]
ROOT = DOCS.parent

FENCED = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ROW = re.compile(r"^\| ([^|]+) \| (\[.+) \|$", re.MULTILINE)


@functools.cache
def copies() -> dict[Path, str]:
    """Return the pages outside `docs/` that the site has a copy of, with its docname."""
    pages = {path: path.stem.lower().replace("_", "-") for path in sorted(ROOT.glob("*.md"))}
    for readme in sorted((ROOT / "examples").rglob("README.md")):
        pages[readme] = f"examples/{readme.parent.name}"
    for readme in sorted((ROOT / "plugins").glob("*/README.md")):
        pages[readme] = f"packages/{readme.parent.name}"
    return {path: f"{GENERATED}/{name}" for path, name in pages.items()}


@functools.cache
def repository() -> str:
    """Return the address of the repository's files, or nothing if the project states none."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"].get("urls", {})
    address = urls.get("Repository") or urls.get("Source") or urls.get("Homepage") or ""
    return address.removesuffix(".git").rstrip("/")


def outside_code(text: str, pattern: re.Pattern[str], replace: object) -> str:
    """Replace a pattern, but not in fenced blocks."""
    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [pattern.sub(replace, text[end : block.start()]), block[0]]  # type: ignore[call-overload]
        end = block.end()
    return "".join([*parts, pattern.sub(replace, text[end:])])  # type: ignore[call-overload]


def with_site_links(text: str, source: Path, docname: str) -> str:
    """Return a page whose links lead to pages of the site, or to the repository.

    Args:
        text: Content of the page.
        source: File that its links are relative to.
        docname: Place of the page on the site.
    """
    place = (DOCS / docname).parent

    def replaced(match: re.Match[str]) -> str:
        mark, label, link = match.groups()
        file, hash_, anchor = link.partition("#")
        if not file or re.match(r"[a-z]+:", link):
            return match[0]
        target = (source.parent / file).resolve()
        if target in copies():
            target = DOCS / f"{copies()[target]}.md"
        elif not target.is_relative_to(DOCS):
            path = target.relative_to(ROOT).as_posix()
            if repository():
                kind = "tree" if target.is_dir() else "blob"
                return f"{mark}[{label}]({repository()}/{kind}/main/{path}{hash_}{anchor})"
            if target.is_dir() or target.suffix == ".md":
                return label
        return f"{mark}[{label}]({os.path.relpath(target, place)}{hash_}{anchor})"

    return outside_code(text, LINK, replaced)


def site_text(docname: str, text: str) -> str:
    """Return the content of a page of the site; that of a generated page is final."""
    if docname.startswith(f"{GENERATED}/"):
        return text
    text = with_site_links(text, DOCS / f"{docname}.md", docname)
    return _with_navigation(text) if docname == "index" else text


def _with_navigation(text: str) -> str:
    """Return the index with the generated pages, and each of its tables as navigation."""
    rows = "".join(f"| {purpose} | [{title}]({name}.md) |\n" for name, title, purpose in INDEXES)
    text = re.sub(r"(?<=\n## Reference\n\n\| to \| read \|\n\|---\|---\|\n)", rows, text)
    blocks = []
    for caption, pages in sections(text):
        entries = "\n".join(f"{title} <{link.removesuffix('.md')}>" for _, title, link in pages)
        blocks.append(f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return text + "".join(blocks)


def sections(text: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the sections of the index with their pages: purpose, title and link of each."""
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        yield (
            heading,
            [
                (row[1], link[2], link[3])
                for row in ROW.finditer(body)
                for link in LINK.finditer(row[2])
            ],
        )
