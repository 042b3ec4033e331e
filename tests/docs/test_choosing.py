"""The page on choosing has no measured number that the results lack, and its commands are valid."""

from __future__ import annotations

import re

from doc_pages import DOCS, commands, parse

from ssl_toolkit.config.loading import read_layers, validate

PAGE = (DOCS / "start/choosing.md").read_text("utf-8")
RESULTS = {path.stem: path.read_text("utf-8") for path in (DOCS / "results").glob("*.md")}


def test_every_number_is_in_the_results() -> None:
    results = set(re.findall(r"[0-9][0-9.,–]*[0-9]", "\n".join(RESULTS.values())))
    page = PAGE.partition("## Measure on")[0]
    measured = re.findall(r"[0-9]+\.[0-9]+|[0-9]+–[0-9]+", page)
    assert len(measured) > 70
    assert [number for number in measured if number not in results] == []


def test_numbers_beside_a_link_are_in_the_linked_section() -> None:
    sections = {}
    for page, content in RESULTS.items():
        parts = re.split(r"^#+ (.+)$", content, flags=re.MULTILINE)
        for title, section in zip(parts[1::2], parts[2::2], strict=True):
            slug = re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
            sections[f"{page}.md#{slug}"] = section
    links = re.findall(r"\[([^\]]+)\]\(\.\./results/([\w-]+\.md#[\w-]+)\)", PAGE)
    assert len(links) > 8
    for text, slug in links:
        for number in re.findall(r"[0-9]+\.[0-9]+", text):
            assert number in sections[slug], (slug, number)


def test_every_row_of_the_decision_links_its_measurement() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [^|]+ \|( [^|]*\|){5}$", line)][2:]
    assert len(rows) > 8
    assert [row for row in rows if "../results/" not in row] == []


def test_the_commands_are_valid() -> None:
    flags = re.findall(r"`(--[a-z].+?)`", PAGE.partition("## From random")[0])
    assert len(flags) > 7
    for line in [*commands(PAGE), *(f"ssl-toolkit run --data images {more}" for more in flags)]:
        parse(line)
        if name := re.search(r"--algo (\S+)", line):
            given = {"algo": name[1], "pretrained": "--pretrained" in line}
            validate(read_layers([], given, []))
