"""Copy the results of a suite without weights: what ``ssl-toolkit report`` reads.

    python benchmarks/publish.py runs/benchmark-small docs/results/small-1

Paths below the current folder become relative to it, so that no path of the machine is published.
The last step reports the copy, which writes its tables and its page from the copied files alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

OF_A_MEMBER = ("comparison.yaml", "plan.json")
OF_A_RUN = ("config.yaml", "record.json", "summary.json", "metrics.jsonl", "predictions.npz")


def publish(source: Path, target: Path) -> None:
    """Copy the results of a suite.

    Args:
        source: Folder of the suite.
        target: Folder of the copy, which must not exist.
    """
    if target.exists():
        raise SystemExit(f"error: {target}: exists; remove it, or give another folder")
    plans = sorted(source.glob("members/*/plan.json"))
    runs = sorted(source.glob("members/*/runs/*/s*/summary.json"))
    files = [source / "suite.yaml", source / "benchmark.json"]
    files += [plan.parent / name for plan in plans for name in OF_A_MEMBER]
    files += [run.parent / name for run in runs for name in OF_A_RUN]
    for file in files:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".yaml", ".json"):
            text = file.read_text("utf-8").replace(f"{Path.cwd()}/", "")
            copy.write_text(text, "utf-8")
        else:
            shutil.copyfile(file, copy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    publish(args.source, args.target)
    subprocess.run([sys.executable, "-m", "ssl_toolkit", "report", args.target], check=True)
