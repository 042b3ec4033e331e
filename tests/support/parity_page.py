"""Write the page on step parity.

``python tests/support/parity_page.py > docs/explanation/parity.md``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from code_size import ROOT, size_of
from parity_cases import ADD_ONS, CASES
from step_parity import STEPS, deviations

from ssl_toolkit import registry

INTRODUCTION = f"""\
# Step parity

Every algorithm that trains in steps, and every add-on, is compared with plain loops over the
formulas of its paper: image by image, class by class, pair by pair, without the library's code.
Both train the same network for {STEPS} steps in float64, from the same weights and on the same
views. The library trains by its engine: gradients, clipping, SGD with Nesterov momentum or AdamW,
weight decay, cosine schedule and averages are part of the comparison. A test fails if a loss,
gradient, weight or average differs by 10⁻⁹ or more in any profile. The network has no BatchNorm, so
that an image can be computed alone; other tests cover BatchNorm.

The deviations are the largest over all steps and [profiles](design.md#profiles), relative for
values above 1. They are rounding and vary by machine. *Lines* are the lines of code of the file,
without docstrings, comments and empty lines; *with imports* adds the files of its package that it
imports.

| algorithm | file | lines | with imports | profiles | losses | gradients | weights | averages |
|---|---|---|---|---|---|---|---|---|
"""
END = """
This page is generated: `python tests/support/parity_page.py > docs/explanation/parity.md`. The
formulas are in `tests/support/loops_*.py`, the update rules in `tests/support/step_parity.py`.
"""


def built_in_algorithms() -> list[str]:
    """Return the names of the algorithms of this distribution."""
    return sorted(entry.name for entry in registry.entries("algorithms") if entry.built_in)


def facts() -> Iterator[tuple[str, str]]:
    """Yield each algorithm, and the first cells of its row: what no machine changes."""
    for name in built_in_algorithms():
        plugin = registry.load("algorithms", name)
        path = Path(inspect.getfile(plugin)).resolve()
        place = path.relative_to(ROOT).as_posix()
        profiles = ", ".join(("paper", *plugin.profiles) if name in CASES else ("fits a head",))
        code, total = lines_of(path), sum(map(lines_of, with_imports(path)))
        link = f"[{path.name}](../../{place})"
        yield name, f"| `{name}` | {link} | {code} | {total} | {profiles} |"
    for name in ADD_ONS:
        path = Path(inspect.getfile(registry.load("addons", name.rpartition("+")[2]))).resolve()
        link = f"[{path.name}](../../{path.relative_to(ROOT).as_posix()})"
        total = sum(map(lines_of, with_imports(path)))
        yield name, f"| `{name}` | {link} | {lines_of(path)} | {total} | paper |"


@cache
def lines_of(path: Path) -> int:
    return size_of(path.read_text("utf-8"))["code"]


def with_imports(path: Path, found: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """Return a file and those of its package that it imports, directly or not."""
    found |= {path}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            package, _, module = node.module.partition(".")
            other = path.parent / f"{module}.py"
            if package == path.parent.name and other.exists() and other not in found:
                found |= with_imports(other, found)
    return found


def measured(name: str) -> str:
    """Return the last cells of a row: the largest deviations over all profiles."""
    case = (CASES | ADD_ONS).get(name)
    if case is None:
        return " – | – | – | – |"
    profiles = (
        ["paper"] if name in ADD_ONS else ["paper", *registry.load("algorithms", name).profiles]
    )
    results = [deviations(name, profile, case) for profile in profiles]

    def largest(part: str) -> str:
        return f"{max(getattr(result, part) for result in results):.0e}"

    return f" {' | '.join(map(largest, ('losses', 'gradients', 'weights', 'averages')))} |"


def page() -> str:
    """Return the page as Markdown."""
    rows = [f"{cells}{measured(name)}\n" for name, cells in facts()]
    return INTRODUCTION + "".join(rows) + END


if __name__ == "__main__":
    print(page(), end="")
