"""Show what the runs of a comparison warn about, each text once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ssl_toolkit.comparisons.schema import PlanFile
from ssl_toolkit.console import Console
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import summarize


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


def warn_of_other_runs(
    earlier: PlanFile, folder: Path, planned: Collection[tuple[str, int]], console: Console
) -> None:
    """Warn that the tables will not have some runs of an earlier call.

    Args:
        earlier: Plan of that call.
        folder: Path to the comparison.
        planned: Row and seed of each run of this call.
        console: Shows the warning.
    """
    others = [
        f"{run.row} (seed {run.seed})"
        for run in earlier.runs(folder)
        if (run.row, run.seed) not in planned and RunFolder(run.folder).summary.exists()
    ]
    if others:
        console.warn(
            f"not in the tables of this call: {summarize(others)}; these runs are kept, name their "
            "rows and seeds as well to have them in the tables"
        )
