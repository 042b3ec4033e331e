"""Show what the runs of a comparison warn about, each text once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssl_toolkit.console import Console


def show_warnings(warnings: Mapping[tuple[str, int], Sequence[str]], console: Console) -> None:
    """Show each warning once, with the rows and seeds that have it.

    Args:
        warnings: Warnings by row and seed.
        console: Shows them.
    """
    rows = dict.fromkeys(row for row, _ in warnings)
    found: dict[str, dict[str, list[str]]] = {}
    for (row, seed), texts in warnings.items():
        for text in texts:
            found.setdefault(text, {}).setdefault(row, []).append(str(seed))
    for text, seeds_of in found.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for row, seeds in seeds_of.items():
            alike.setdefault(tuple(seeds), []).append(row)
        where = [
            f"{'every row' if 1 < len(names) == len(rows) else ', '.join(names)}, "
            f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            for seeds, names in alike.items()
        ]
        console.warn(f"{'; '.join(where)}: {text}")
