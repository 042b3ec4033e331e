"""Words that must not come back, in all that is read.

`words_to_clean.txt` lists the texts that still hold some. It can only become shorter.
"""

from __future__ import annotations

import pytest
from words import TABLE, findings, unclean

ALLOWED = set(TABLE.read_text(encoding="utf-8").split("\n")) - {""}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    return unclean()


def test_unwanted_words_are_only_in_listed_texts(found: dict[str, list[str]]) -> None:
    assert [line for name in found if name not in ALLOWED for line in found[name]] == []


def test_a_clean_text_is_no_longer_listed(found: dict[str, list[str]]) -> None:
    assert ALLOWED - found.keys() == set(), "run python tests/support/words.py > " + str(TABLE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The user is told_what to do.", ["told"]),
        ("Go on with the run, anew.", ["anew", "Go on"]),
        ("Two stand under it; a stand-in stands for it.", ["stand"]),
        ("No more than two, no more.", ["no more"]),
        ("4 labels a class of a picture", ["picture", "labels a class"]),
        ("neighbours, normalised, unlabelled", ["neighbours", "normalised", "unlabelled"]),
        ('"""Whether it is so."""', ["Whether"]),
        ("standard, belief, shallow, retold, gone, dataset", []),
    ],
)
def test_words_are_found(text: str, words: list[str]) -> None:
    lines = findings("a.py", text)
    assert sorted(line.split("'")[1] for line in lines) == sorted(words)


def test_accepted_aliases_are_allowed() -> None:
    assert findings("ssl_toolkit/data/readers/folders.py", '"labelled": "labeled"') == []
    assert findings("ssl_toolkit/data/load.py", '"labelled"') != []
