"""Compare the startup time of commands with that of the imports they need.

Each round runs every command once, as a separate process, in a rotating order, and measures its CPU
time and wall time. A ratio is the median over the rounds of the command's time divided by the time
of the imports in the same round.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/start.py [--rounds 20]

`run` trains one step on the digits and includes evaluation, checkpoints and the test, so its first
step ends earlier than the printed time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PYTHON = [sys.executable, "-c"]
TOOL = [sys.executable, "-m", "ssl_toolkit"]
RUN = [*TOOL, "run", "--dataset", "digits", "--steps", "1", "--overwrite", "--quiet", "--output"]
BASELINES = {
    "--help": "import click",
    "list": "import click",
    "run": "import torch, timm",
    "predict": "import torch, timm",
}


def measure(command: list[str]) -> tuple[float, float]:
    """Return the CPU and wall seconds of a process that must succeed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with tempfile.TemporaryDirectory() as folder:
        trained, image = f"{folder}/trained", f"{folder}/image.png"
        subprocess.run([*RUN, trained], check=True, capture_output=True)
        draw = f"from PIL import Image; Image.new('RGB', (8, 8)).save({image!r})"
        subprocess.run([*PYTHON, draw], check=True)
        commands = {
            "import click": [*PYTHON, "import click"],
            "import torch": [*PYTHON, "import torch"],
            "import torch, timm": [*PYTHON, "import torch, timm"],
            "--help": [*TOOL, "--help"],
            "list": [*TOOL, "list"],
            "run": [*RUN, f"{folder}/run"],
            "predict": [*TOOL, "predict", trained, image],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            names = list(commands)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                measurement = measure(commands[name])
                if number:  # the first round fills the file system cache
                    times[name].append(measurement)
    print(f"{rounds} rounds, medians of CPU and wall seconds, ratios by CPU time and wall time")
    for name, measurements in times.items():
        cpu, wall = (statistics.median(part) for part in zip(*measurements, strict=True))
        line = f"{name:20} {cpu:6.2f} {wall:6.2f}"
        if name in BASELINES:
            pairs = zip(measurements, times[BASELINES[name]], strict=True)
            ratios = [(ours[0] / bare[0], ours[1] / bare[1]) for ours, bare in pairs]
            by_cpu, by_wall = (statistics.median(part) for part in zip(*ratios, strict=True))
            line += f"   {by_cpu:.2f} / {by_wall:.2f} of `{BASELINES[name]}`"
        print(line)


if __name__ == "__main__":
    main()
