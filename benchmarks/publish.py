"""Copy the results of a suite without weights: what ``ssl-toolkit report`` reads.

    python benchmarks/publish.py runs/benchmark-small docs/results/small-1

Paths below the current folder become relative to it; others are reduced to the name of the file.
Predictions lose the images of mistakes, which are large.
Then the copy is reported, which writes its tables and its page from the copied files alone, and its
results are printed as Markdown.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ssl_toolkit.comparisons.schema import ScoreStats
from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import fingerprint_of
from ssl_toolkit.markdown import table
from ssl_toolkit.runs.predictions import FORMAT, read_arrays
from ssl_toolkit.suites.page import JSON
from ssl_toolkit.suites.results import Benchmark, MemberResult, ResultRow
from ssl_toolkit.suites.run import SUITE

OF_A_MEMBER = ("comparison.yaml", "plan.json", "failures.json")
OF_A_RUN = ("config.yaml", "record.json", "summary.json", "metrics.jsonl", "predictions.npz")
HEAD = ("row", "n", "score, %", "to {baseline}", "s", "s to 90 %", "to 95 %", "coverage", "correct")


def publish(source: Path, target: Path) -> None:
    """Copy the results of a suite.

    Args:
        source: Folder of the suite.
        target: Folder of the copy, which must not exist.
    """
    if target.exists():
        raise SystemExit(f"error: {target}: exists; remove it, or give another folder")
    plans = sorted(source.glob("members/*/plan.json"))
    runs = sorted(source.glob("members/*/runs/*/s*/config.yaml"))
    files = [source / SUITE, source / JSON]
    files += [plan.parent / name for plan in plans for name in OF_A_MEMBER]
    files += [run.parent / name for run in runs for name in OF_A_RUN]
    files = [file for file in files if file.exists()]  # failed runs lack some
    for file in files:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".yaml", ".json"):
            text = file.read_text("utf-8").replace(f"{Path.cwd()}/", "")
            text = re.sub(r'(?<=[\s"])/(?:[^/\s"]+/)+', "", text)
            copy.write_text(text, "utf-8")
        elif file.suffix == ".npz":
            arrays = read_arrays(file)
            kept = {k: v for k, v in arrays.items() if not k.startswith("mistakes")}
            np.savez_compressed(copy, format=FORMAT, **kept)
        else:
            shutil.copyfile(file, copy)
    _update_fingerprints(target)


def _update_fingerprints(target: Path) -> None:
    """Write the fingerprints of the copied configurations, which contain paths, into the copy."""
    changed = {}
    for config in target.glob("members/*/runs/*/s*/config.yaml"):
        record = config.parent / "record.json"
        if record.exists():
            old = json.loads(record.read_text("utf-8"))["fingerprint"]
            changed[old] = fingerprint_of(yaml.read_dumped(config))
    for file in target.rglob("*.json"):
        text = file.read_text("utf-8")
        file.write_text(
            re.sub(r"\b[0-9a-f]{16}\b", lambda m: changed.get(m[0], m[0]), text), "utf-8"
        )


def tables(results: Benchmark) -> str:
    """Return the results as Markdown: the mean ranks, and a table for each member."""
    overall = results.overall
    head = ("row", "mean rank", "mean score, %", *overall.members)
    ranks = (
        (
            f"`{row.name}`",
            f"{row.mean_rank:.1f}",
            f"{100 * row.mean_score:.1f}",
            *(f"{row.ranks[member]:g}" for member in overall.members),
        )
        for row in overall.rows
    )
    parts = [
        table(head, ranks),
        *(part for one in results.members for part in _member(one, results)),
    ]
    return "\n\n".join(parts) + "\n"


def _member(member: MemberResult, results: Benchmark) -> Iterator[str]:
    yield f"### {member.name}"
    yield f"{member.title}. Status: {member.status}."
    if member.rows:
        head = [text.format(baseline=f"`{results.baseline}`") for text in HEAD]
        yield table(head, map(_cells, member.rows))


def _cells(row: ResultRow) -> list[str]:
    times = [
        f"{len(one.values)} of {row.completed}" if one.mean is None else f"{one.mean:.1f}"
        for one in row.reached
    ]
    difference = "–"
    if row.difference is not None:
        difference = f"{100 * row.difference.mean:+.1f}"
        if row.difference.interval is not None:
            low, high = row.difference.interval
            difference += f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return [
        f"`{row.name}`",
        str(row.completed),
        _percent(row.score),
        difference,
        f"{row.seconds.mean:.0f}" if row.seconds else "–",
        *(times or ("–", "–")),
        _percent(row.coverage, spread=False),
        _percent(row.pseudo_label_accuracy, spread=False),
    ]


def _percent(score: ScoreStats | None, *, spread: bool = True) -> str:
    if score is None:
        return "–"
    deviation = f" ± {100 * score.deviation:.1f}" if spread and score.deviation is not None else ""
    return f"{100 * score.mean:.1f}{deviation}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    publish(args.source, args.target)
    command = [sys.executable, "-m", "ssl_toolkit", "report", args.target]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(tables(Benchmark.read(args.target / JSON)))
