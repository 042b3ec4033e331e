"""The glossary is in alphabetical order and uses none of the synonyms that it rejects."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/reference/glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| term ")
]


def test_terms_are_in_alphabetical_order_and_unique() -> None:
    terms = [row[0].casefold() for row in ROWS]
    assert len(terms) > 80
    assert terms == sorted(set(terms))


def test_every_definition_is_one_sentence() -> None:
    for term, meaning, _ in ROWS:
        assert meaning, term
        assert not re.search(r"\.(?: |$)", meaning), f"{term}: more than one sentence"


def test_no_term_is_also_a_rejected_synonym() -> None:
    terms = {term for row in ROWS for term in row[0].split(", ")}
    rejected = {synonym for row in ROWS for synonym in row[2].split(", ") if synonym}
    assert terms & rejected == set()
