"""Measure the memory of a long run over time: it must not grow from the first steps to the last.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/long_run.py [--algo simple] [--steps 10000]

Trains on the digits (wrn_10_1, 8 labeled images per step, 20 evaluations and checkpoints) in a
separate process, samples its anonymous memory (without mapped files) twice per second, and prints
the maximum in each tenth of the run. Linux only.
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


def anonymous_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0  # the process has exited


def last_step(metrics: Path) -> int:
    lines = metrics.read_text().rpartition("\n")[0] if metrics.exists() else ""
    return int(json.loads(lines.rpartition("\n")[2])["step"]) if lines else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", default="simple")
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "run")
        keys = {"--algo": options.algo, "--steps": options.steps}
        keys |= {"--eval-every": options.steps // 20}
        keys |= {"--backbone": "wrn_10_1", "--batch-size": 8, "--output": folder}
        command_line = [str(value) for pair in keys.items() for value in pair]
        start = time.perf_counter()
        tool = [sys.executable, "-m", "ssl_toolkit", "run", "--quiet"]
        process = subprocess.Popen([*tool, *command_line])
        peaks = [0.0] * 10
        while process.poll() is None:
            tenth = min(9, last_step(folder / "metrics.jsonl") * 10 // options.steps)
            peaks[tenth] = max(peaks[tenth], anonymous_megabytes(process.pid))
            time.sleep(0.5)
        if process.returncode:
            raise SystemExit(f"the run failed with exit status {process.returncode}")
    print(f"{platform.machine()}, Python {platform.python_version()}: {options.algo}, ", end="")
    print(f"{options.steps:,} steps in {time.perf_counter() - start:.0f} s")
    print("peak MB in each tenth of the run:", ", ".join(f"{peak:.0f}" for peak in peaks))


if __name__ == "__main__":
    main()
