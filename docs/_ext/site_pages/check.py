"""Check the links of a built site without a network: ``python -m site_pages.check FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from site_pages.sources import FENCED, LINK


class Page(HTMLParser):
    """The anchors and links of a page of HTML."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes of an element that are anchors or links."""
        for key, value in attrs:
            if key == "id" or (key == "name" and tag == "a"):
                self.anchors.add(value or "")
            elif key in ("href", "src") and value:
                self.links.append(value)


def broken_links(folder: Path) -> Iterator[str]:
    """Yield the links of a site that lead nowhere in it, each with its page."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.exists():
                yield f"{path.relative_to(folder.resolve())}: {link}: no such file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{path.relative_to(folder.resolve())}: {link}: no such anchor"


def broken_links_of_markdown(folder: Path) -> Iterator[str]:
    """Yield the links of the Markdown copies, and of `llms.txt`, to files that the site lacks."""
    for path in [*sorted(folder.rglob("*.md")), *folder.glob("llms.txt")]:
        for _, _, link in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
            file = link.partition("#")[0]
            target = (path.parent / file).resolve()
            inside = target.is_relative_to(folder.resolve()) and target.exists()
            if file and ":" not in file and not inside:
                yield f"{path.relative_to(folder)}: {link}: no such file"


def main(folder: Path) -> int:
    """Print the broken links; return 1 if there are some."""
    found = sorted({*broken_links(folder), *broken_links_of_markdown(folder)})
    pages = len(list(folder.rglob("*.html")))
    print(*found, f"{pages} pages, {len(found)} broken links", sep="\n")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
