"""Count the code of each package: ``python tests/support/code_size.py``."""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "ssl_toolkit"
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
}


@cache
def sizes() -> dict[str, Counter[str]]:
    """Return counts of files, lines, code, docstrings and statements by package of the core."""
    result: dict[str, Counter[str]] = {}
    for path in sorted(
        [*CORE.rglob("*.py"), *CORE.glob("*.pyi"), *(ROOT / "plugins").rglob("*.py")]
    ):
        parts = path.relative_to(CORE if path.is_relative_to(CORE) else ROOT).parts
        part = parts[0] if len(parts) > 1 else "single files"
        result.setdefault(part, Counter()).update(size_of(path.read_text("utf-8")))
    return result


def size_of(source: str) -> Counter[str]:
    """Return the counts of a file; lines of docstrings and comments are not lines of code."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        for one in (
            getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []
        ):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                docstrings.update(range(one.lineno, (one.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return Counter(
        files=1,
        lines=len(source.splitlines()),
        code=len(code - docstrings),
        docstrings=len(docstrings),
        statements=sum(isinstance(node, ast.stmt) for node in ast.walk(tree)),
    )


if __name__ == "__main__":
    table = sizes()
    table["all"] = sum(table.values(), Counter())
    print("| part | " + " | ".join(table["all"]) + " |")
    for part, size in table.items():
        print(f"| {part} | " + " | ".join(f"{size[key]:,}" for key in table["all"]) + " |")
