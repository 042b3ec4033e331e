"""Memory of a run over its steps: a long one must need no more at its end than at its beginning.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/long_run.py [--algo simple] [--steps 10000]

Trains on the digits (wrn_10_1, 8 labeled images a step, evaluated and saved 20 times) in a
process of its own, and looks twice a second at the memory that it has for itself, mapped files left
out. Printed is the most that was seen in each tenth of the run. Linux only.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def own_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0  # the process has ended


def last_step(metrics: Path) -> int:
    whole = metrics.read_text().rpartition("\n")[0] if metrics.exists() else ""
    return int(json.loads(whole.rpartition("\n")[2])["step"]) if whole else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", default="simple")
    parser.add_argument("--steps", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        keys = {"--algo": given.algo, "--steps": given.steps, "--eval-every": given.steps // 20}
        keys |= {"--backbone": "wrn_10_1", "--batch-size": 8, "--output": folder}
        words = [str(word) for pair in keys.items() for word in pair]
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "ssl_toolkit", "run", "--quiet", *words])
        most = [0.0] * 10
        while process.poll() is None:
            tenth = min(9, last_step(folder / "metrics.jsonl") * 10 // given.steps)
            most[tenth] = max(most[tenth], own_megabytes(process.pid))
            time.sleep(0.5)
        if process.returncode:
            raise SystemExit(f"the run ended with status {process.returncode}")
    print(f"{platform.machine()}, Python {platform.python_version()}: {given.algo}, ", end="")
    print(f"{given.steps:,} steps in {time.perf_counter() - started:.0f} s")
    print("MB in each tenth:", ", ".join(f"{megabytes:.0f}" for megabytes in most))


if __name__ == "__main__":
    main()
