"""docs/explanation/formulas.md has every shared formula and every built-in algorithm."""

from __future__ import annotations

import re

from doc_pages import DOCS, sections

from ssl_toolkit import ops, registry

PAGE = (DOCS / "explanation/formulas.md").read_text("utf-8")
SECTIONS = sections(PAGE)


def test_every_shared_formula_is_listed() -> None:
    listed = set(re.findall(r"`(\w+)`", SECTIONS["Shared formulas"]))
    assert {*ops.__all__} - {"at_least_float32"} <= listed


def test_every_algorithm_and_add_on_is_in_the_row_of_its_plugin() -> None:
    rows = re.findall(r"^\| (\[.+?) \| (.+) \|$", SECTIONS["Algorithms"], re.MULTILINE)
    listed = {
        name: {*re.findall(r"plugins/(\w+)/README", links)}
        for links, names in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    entries = [e for g in ("algorithms", "addons") for e in registry.entries(g) if e.built_in]
    assert len(entries) > 30
    for entry in entries:
        plugin = entry.value.partition(":")[0].partition(".")[0].removeprefix("ssl_toolkit_")
        assert plugin in listed[entry.name], entry.name
