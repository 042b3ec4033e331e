"""Print tables of comparisons with uneven pools, or with images of no class in the pool.

    python benchmarks/pool_tables.py addons FOLDER...
    python benchmarks/pool_tables.py strangers --without FOLDER --with FOLDER --filtered FOLDER

``addons``: balanced accuracy of each row, and its difference from the row of the same algorithm
without an add-on. ``strangers``: accuracy without strangers in the pool, and the change with them,
without and with ``--drop-strangers``. Several folders are read as one comparison, with the rows and
seeds of all. In percent: mean ± sample standard deviation over seeds; differences are paired by
seed, with the smallest and the largest one, or that of each seed. Test images; ``--part
validation`` for the others.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Runs = dict[str, dict[int, dict[str, Any]]]
"""Summaries by row and seed."""


def read(folders: Sequence[Path]) -> Runs:
    """Return the summaries of the completed runs of some comparisons."""
    runs: Runs = defaultdict(dict)
    for folder in folders:
        plan = json.loads((folder / "plan.json").read_text())
        for row in plan["rows"]:
            for seed in plan["seeds"]:
                file = folder / row["folder"] / f"s{seed}" / "summary.json"
                summary = json.loads(file.read_text()) if file.exists() else {}
                if summary.get("status") == "completed":
                    runs[row["name"]][seed] = summary
    return runs


def scores(runs: dict[int, dict[str, Any]], part: str, key: str) -> dict[int, float]:
    """Return a score in percent by seed."""
    return {seed: 100 * summary[part][key] for seed, summary in runs.items()}


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation."""
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{deviation}"


def change(of: dict[int, float], to: dict[int, float], *, each: bool = False) -> str:
    """Return the mean difference of the common seeds, and its extremes or the one of each seed."""
    pairs = [to[seed] - of[seed] for seed in sorted(of) if seed in to]
    if not pairs:
        return "–"
    if each:
        others = f" ({', '.join(f'{pair:+.1f}' for pair in pairs)})" if len(pairs) > 1 else ""
    else:
        others = f" ({min(pairs):+.1f} to {max(pairs):+.1f})"
    return f"{mean(pairs):+.1f}{others}"


def addons(runs: Runs, part: str) -> None:
    """Print the table of add-ons."""
    print("| row | n | balanced accuracy | difference |\n|---|---|---|---|")
    for name, of in runs.items():
        values = scores(of, part, "balanced_accuracy")
        base = scores(runs[name.partition("+")[0]], part, "balanced_accuracy")
        difference = change(base, values) if "+" in name else "–"
        print(f"| {name} | {len(values)} | {spread([*values.values()])} | {difference} |")


def strangers(without: Runs, within: Runs, filtered: Runs, part: str) -> None:
    """Print the table of strangers."""
    print("| algorithm | n | without strangers | with | filtered | AUROC | left out |")
    print("|---|---|---|---|---|---|---|")
    for name, of in without.items():
        clean = scores(of, part, "accuracy")
        lost = [
            change(clean, scores(runs[name], part, "accuracy"), each=True)
            for runs in (within, filtered)
        ]
        dropped = [summary["dropped"] for summary in filtered[name].values()]
        auroc, share = (
            f"{mean(values):.2f}" if values else "–"
            for values in (
                [one["auroc"] for one in dropped],
                [one["strangers"] / one["images"] for one in dropped if one["images"]],
            )
        )
        cells = [name, len(clean), spread([*clean.values()]), *lost, auroc, share]
        print(f"| {' | '.join(map(str, cells))} |")


def main() -> None:
    """Parse the arguments and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", choices=("test", "validation"), default="test")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("addons").add_argument("folders", nargs="+", type=Path)
    pools = kinds.add_parser("strangers")
    for option in ("without", "with", "filtered"):
        pools.add_argument(f"--{option}", nargs="+", type=Path, required=True)
    arguments = vars(parser.parse_args())
    if arguments["kind"] == "addons":
        addons(read(arguments["folders"]), arguments["part"])
    else:
        three = (read(arguments[option]) for option in ("without", "with", "filtered"))
        strangers(*three, arguments["part"])


if __name__ == "__main__":
    main()
