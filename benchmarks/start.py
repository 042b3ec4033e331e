"""Start of a process: what our commands cost beside the bare imports they can't do without.

Each round starts every command once, as a process of its own, in a rotating order; CPU time is that
of the process as the system counts it, wall time is beside it. Ratios are medians over the rounds
of one command's time divided by another's in the same round.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/start.py [--rounds 20]

The run is of one step on the digits, with its evaluation, its checkpoints and its test: the first
step is done earlier than what is printed.
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
AGAINST = {
    "--help": "import click",
    "list": "import click",
    "run": "import torch, timm",
    "predict": "import torch, timm",
}


def used(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of a process that must succeed."""
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
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                measured = used(commands[name])
                if number:  # the first round fills the caches of files
                    times[name].append(measured)
    print(f"{rounds} rounds, medians of CPU and wall seconds, ratios by CPU and wall time")
    for name, measured in times.items():
        cpu, wall = (statistics.median(part) for part in zip(*measured, strict=True))
        line = f"{name:20} {cpu:6.2f} {wall:6.2f}"
        if name in AGAINST:
            pairs = zip(measured, times[AGAINST[name]], strict=True)
            ratios = [(ours[0] / bare[0], ours[1] / bare[1]) for ours, bare in pairs]
            by_cpu, by_wall = (statistics.median(part) for part in zip(*ratios, strict=True))
            line += f"   {by_cpu:.2f} / {by_wall:.2f} of `{AGAINST[name]}`"
        print(line)


if __name__ == "__main__":
    main()
