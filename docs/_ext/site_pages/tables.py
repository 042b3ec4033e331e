"""Markdown of generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ssl_toolkit.markdown import table as _table


def prose(text: str) -> str:
    """Return a text in which only backticks have a meaning in Markdown."""
    parts = re.split(r"(``?[^`]+``?)", text)
    parts[::2] = [re.sub(r"[<*]|(?<!\w)_|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def cell(text: object) -> str:
    """Return a text as the cell of a table, as `prose`."""
    return prose(str(text).replace("\n", " ")).replace("|", "\\|")


def code(text: object) -> str:
    """Return a text as code in the cell of a table; nothing if it is empty."""
    value = str(text).replace("|", "\\|")
    return f"`{value}`" if value else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table and a line break; nothing without rows."""
    lines = list(rows)
    return f"{_table(head, lines)}\n" if lines else ""


def toctree(entries: Iterable[str]) -> str:
    """Return the navigation to pages below this one."""
    names = "\n".join(entries)
    return f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
