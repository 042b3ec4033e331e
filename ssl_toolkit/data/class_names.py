"""Names of classes and files in tables, escaped so that they read back the same."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence

UNLABELED = frozenset(("", "-1", "unlabeled", "unlabelled", "null"))
"""Labels, in lower case, of images without a class."""

_FORMULA = frozenset("=+-@\t\r")
"""First characters of formulas in spreadsheets."""


def guarded(text: str, *, as_label: bool = False) -> str:
    """Return a text as a cell, after an apostrophe or two if it would be read as something else.

    That is a formula in a spreadsheet, in a column of labels a word of `UNLABELED`; and, with two,
    a text without the spaces at its ends. `unguarded` gives the text back.
    """
    plain = not as_label and text[:1] not in _FORMULA and text.lower() in UNLABELED
    return text if plain else _guard(text) + text


def unguarded(cell: str) -> str:
    """Return the text of a cell of `guarded`; any other cell unchanged."""
    for guard in ("''", "'"):
        text = cell.removeprefix(guard)
        if text != cell and _guard(text) == guard:
            return text
    return cell


def _guard(text: str) -> str:
    """Return a text's prefix; two apostrophes for spaces: `'s-Hertogenbosch` may have some."""
    text_only = text.lstrip("'")  # existing apostrophes are preserved
    if text_only != text_only.strip():
        return "''"
    return "'" if text_only and (text_only[0] in _FORMULA or text_only.lower() in UNLABELED) else ""


def class_of(cell: str) -> str:
    """Return the class of a label, empty for none; stripped unless it is guarded."""
    text = unguarded(cell)
    if text == cell:
        text = cell.strip()
        return "" if text.lower() in UNLABELED else text
    return text


def class_name(text: str) -> str:
    """Return a name in the Unicode form (NFC) in which names of classes are compared."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def name_fault(text: str) -> str:
    """Return why a text can't be a name, as the end of a sentence; empty if it can."""
    if "\0" in text:
        return "holds a NUL character, which no name may"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "is no Unicode text (it holds half a character)"
    return ""


def look_alike(classes: Sequence[str]) -> list[str]:
    """Return a line for each group of classes that readers would take for one."""
    groups = defaultdict(list)
    for name in classes:
        groups[_as_read(name)].append(name)
    return [
        f"{' and '.join(map(repr, group))} are different classes but look alike (only case, "
        "spaces or invisible characters differ); if they are one, rename them"
        for group in groups.values()
        if len(group) > 1
    ]


def _as_read(name: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    visible = (c for c in folded if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join("".join(visible).split())
