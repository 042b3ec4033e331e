"""Markdown with names of any characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssl_toolkit.errors import visible

_PLAIN = frozenset(" ,;/?%'-")


def escaped(text: object) -> str:
    r"""Escape a text so that Markdown renders it literally, on one line.

    >>> print(escaped("a|b_c\n<i>"))
    a\|b\_c\\n\<i\>
    """
    return "".join(
        f"\\{character}"
        if character.isascii() and not (character.isalnum() or character in _PLAIN)
        else character
        for character in visible(str(text))
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    """Return a list; the lines are Markdown."""
    return "\n".join(f"- {line}" for line in lines)
