"""Markdown of generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ssl_toolkit.markdown import table as _table


def prose(text: str) -> str:
    """Return a text as Markdown: backticks are code, addresses and arXiv's numbers are links."""
    parts = re.split(r"(``?[^`]+``?|https://[^\s,)]*[^\s,.)])", text)
    for place, part in enumerate(parts):
        if part.startswith("https://"):
            parts[place] = f"<{part}>"
        elif not part.startswith("`"):
            part = re.sub(r"[<*]|(?<!\w)_|_(?!\w)", r"\\\g<0>", part)
            parts[place] = re.sub(r"(arXiv:)(\d+\.\d+)", r"[\1\2](https://arxiv.org/abs/\2)", part)
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
