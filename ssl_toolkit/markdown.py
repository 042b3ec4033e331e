"""Markdown with names of any characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ssl_toolkit.errors import visible

_SPECIAL = re.compile(r"(?![A-Za-z0-9,;/?%'-])[!-~]")
"""Punctuation that may have a meaning in Markdown."""


def escaped(text: object) -> str:
    r"""Escape a text so that Markdown renders it literally, on one line.

    >>> print(escaped("a|b_c\n<i>"))
    a\|b\_c\\n\<i\>
    """
    return _SPECIAL.sub(r"\\\g<0>", visible(str(text)))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    """Return a list; the lines are Markdown."""
    return "\n".join(f"- {line}" for line in lines)
