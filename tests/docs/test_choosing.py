"""The page on choosing has no measured number that the results lack, and its commands are valid."""

from __future__ import annotations

import re

from doc_pages import DOCS, commands, parse

from ssl_toolkit.config.loading import read_layers, validate

PAGE = (DOCS / "start/choosing.md").read_text("utf-8")


def test_every_number_is_in_the_results() -> None:
    results = set(re.findall(r"[0-9][0-9.,–]*[0-9]", (DOCS / "results/results.md").read_text()))
    page = PAGE.partition("## Measure on")[0]
    measured = re.findall(r"[0-9]+\.[0-9]+|[0-9]+–[0-9]+", page)
    assert len(measured) > 70
    assert [number for number in measured if number not in results] == []


def test_numbers_beside_a_link_are_in_the_linked_section() -> None:
    parts = re.split(r"^#+ (.+)$", (DOCS / "results/results.md").read_text(), flags=re.MULTILINE)
    titles = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in parts[1::2]]
    sections = dict(zip(titles, parts[2::2], strict=True))
    links = re.findall(r"\[([^\]]+)\]\(\.\./results/results\.md#([\w-]+)\)", PAGE)
    assert len(links) > 8
    for text, slug in links:
        for number in re.findall(r"[0-9]+\.[0-9]+", text):
            assert number in sections[slug], (slug, number)


def test_every_row_of_the_decision_links_its_measurement() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [^|]+ \|( [^|]*\|){5}$", line)][2:]
    assert len(rows) > 8
    assert [row for row in rows if "../results/results.md#" not in row] == []


def test_the_commands_are_valid() -> None:
    flags = re.findall(r"`(--[a-z].+?)`", PAGE.partition("## From random")[0])
    assert len(flags) > 7
    for line in [*commands(PAGE), *(f"ssl-toolkit run --data images {more}" for more in flags)]:
        parse(line)
        if name := re.search(r"--algo (\S+)", line):
            given = {"algo": name[1], "pretrained": "--pretrained" in line}
            validate(read_layers([], given, []))
