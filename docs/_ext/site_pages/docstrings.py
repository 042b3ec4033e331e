"""Docstrings of the code as Markdown: sections as lists, and the texts below attributes."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType

from site_pages.tables import prose

TITLES = {
    "Args": "Arguments",
    **{name: name for name in ("Returns", "Yields", "Raises", "Attributes", "Example", "Examples")},
}
ITEM = re.compile(r"^(\*{0,2}[\w.]+): (.*)$", re.DOTALL)


def markdown(text: str) -> str:
    """Return a docstring as Markdown."""
    result = []
    for title, body in _sections(inspect.cleandoc(text)):
        if title:
            result.append(f"**{TITLES[title]}:**")
        if title in ("", "Returns", "Yields"):
            result += [_block(part) for part in re.split(r"\n\n+(?! )", body) if part]
        else:
            result.append("\n".join(_items(body)))
    return "\n\n".join(result)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sections with their titles; prose before, between and after them has none."""
    title, lines = "", []
    for line in [*text.splitlines(), "Args:"]:
        heading = line.removesuffix(":") if line.removesuffix(":") in TITLES else ""
        if (heading and line.endswith(":")) or (title and line and not line.startswith(" ")):
            if lines:
                yield title, textwrap.dedent("\n".join(lines)).strip("\n")
            title, lines = heading, [] if heading else [line]
        else:
            lines.append(line)


def _block(text: str) -> str:
    """Return a paragraph, or the fenced block of an example."""
    if text.startswith(">>> "):
        return "```pycon\n" + re.sub(r"  # doctest: .*", "", text) + "\n```"
    before, colons, code = text.partition("::\n\n")
    if colons:
        return f"{prose(before)}:\n\n```python\n{textwrap.dedent(code)}\n```"
    return prose(text)


def _items(text: str) -> Iterator[str]:
    """Yield the items of a section as lines of a list."""
    for item in re.split(r"\n(?=\S)", text):
        one_line = " ".join(item.split())
        match = ITEM.match(one_line)
        yield f"- `{match[1]}`: {prose(match[2])}" if match else f"- {prose(one_line)}"


@functools.cache
def statements(module: ModuleType) -> list[ast.stmt]:
    """Return the parsed statements of a module."""
    return ast.parse(inspect.getsource(module)).body


def fields_of(owner: type) -> Iterator[tuple[str, str, str]]:
    """Yield the public annotated attributes of a class: name, type, and the text below it."""
    body = next(
        node.body
        for node in statements(sys.modules[owner.__module__])
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    )
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, text = statement.target.id, ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        if not name.startswith("_"):
            yield name, ast.unparse(statement.annotation), text
