"""Kill runs with SIGKILL at random moments, resume them, and compare them with uninterrupted runs.

    python benchmarks/kill_resume.py --kills 200

Tests every built-in algorithm that trains in steps, on the embedded digits and on a folder of
images that threads read. Compares bit for bit the rows of metrics (without timings), the last and
the best checkpoint, the predictions, and the summary.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from PIL import Image

from ssl_toolkit import FeatureAlgorithm, registry

TIMINGS = ("time", "seconds", "per_second", "memory")
LENGTH = ("--steps", "6", "--eval-every", "3", "--log-every", "2", "--save-every", "2",
          "--batch-size", "8", "--device", "cpu", "--quiet")  # fmt: skip

# The fork server imports everything once, so that each process starts quickly.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["ssl_toolkit.runs.train", "ssl_toolkit.commands.run"])


@dataclass
class Kills:
    """Number of kills, the phase of the run that they interrupted, and differences in results."""

    count: int = 0
    before_the_first_step: int = 0
    in_training: int = 0
    after_the_last_step: int = 0
    differences: list[str] = field(default_factory=list)


def algorithms() -> list[str]:
    """Return the built-in algorithms that train in steps and can be killed between two of them."""
    names = [entry.name for entry in registry.entries("algorithms") if entry.built_in]
    return [n for n in names if not issubclass(registry.load("algorithms", n), FeatureAlgorithm)]


def make_images(folder: Path) -> Path:
    """Write noisy images of four classes: 16 labeled, 24 unlabeled, 12 test images."""
    generator = np.random.default_rng(0)
    for number in range(52):
        label = number % 4
        part = "labeled" if number < 16 else "test" if number < 28 else "unlabeled"
        target = folder / part / ("abcd"[label] if part != "unlabeled" else "") / f"{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 90, (24, 24, 3)) + 40 * label
        Image.fromarray(pixels.astype(np.uint8)).save(target)
    return folder


def start(arguments: list[str], log: Path, cache: Path) -> Any:
    process = _PROCESSES.Process(target=_child, args=(arguments, str(log), str(cache)))
    process.start()
    return process


def _child(arguments: list[str], log: str, cache: str) -> None:
    from ssl_toolkit.commands import main

    os.environ["SSL_TOOLKIT_CACHE"] = cache
    torch.set_num_threads(1)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.argv[1:] = arguments
    main()


def arguments_of(algo: str, images: Path | None, output: Path) -> list[str]:
    data = ["--dataset", "digits"]
    if images is not None:
        data = ["--data", str(images), "--workers", "2", "--image-size", "16",
                "--backbone", "wrn_10_1", "--val-fraction", "0.25"]  # fmt: skip
    if algo == "fully_supervised" and images is not None:
        # It needs labels for the unlabeled images, so these are split from the labeled ones.
        data[1] = str(images / "labeled")
        data += ["--labels-per-class", "1", "--test-fraction", "0.25"]
    return ["run", "--algo", algo, *data, *LENGTH, "--continue", "--output", str(output)]


def wait_for(process: Any, log: Path) -> None:
    process.join(300)
    if process.exitcode != 0:
        raise RuntimeError(f"exit status {process.exitcode}:\n{log.read_text()}")


def kill_and_compare(
    algo: str, images: Path | None, number: int, moments: random.Random, scratch: Path
) -> Kills:
    """Run an algorithm without and with a number of kills, and compare the two runs."""
    kills = Kills()
    reference, killed, log = (scratch / name for name in ("reference", "killed", "log.txt"))
    caches = (scratch / "cache-1", scratch / "cache-2")
    start_time = time.monotonic()
    wait_for(start(arguments_of(algo, images, reference), log, caches[0]), log)
    duration = time.monotonic() - start_time
    while kills.count < number:
        started = (killed / "summary.json").exists()
        again = ["resume", str(killed), "--quiet"]
        if started and json.loads((killed / "summary.json").read_text())["status"] == "completed":
            # It completed before it was killed: compare it and start another run.
            kills.differences += differences(reference, killed)
            for folder in (killed, caches[1]):
                shutil.rmtree(folder, ignore_errors=True)
            started = False
        arguments = again if started else arguments_of(algo, images, killed)
        process = start(arguments, log, caches[1])
        process.join(moments.uniform(0, duration))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills.count += 1
            _note(kills, killed)
        elif process.exitcode != 0:
            raise RuntimeError(f"exit status {process.exitcode}:\n{log.read_text()}")
    wait_for(start(arguments_of(algo, images, killed), log, caches[1]), log)
    kills.differences += differences(reference, killed)
    return kills


def _note(kills: Kills, folder: Path) -> None:
    metrics = folder / "metrics.jsonl"
    rows = metrics.read_text().splitlines() if metrics.exists() else []
    if not rows:
        kills.before_the_first_step += 1
    elif rows[-1].startswith('{"step": 6,'):
        kills.after_the_last_step += 1
    else:
        kills.in_training += 1


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of what differs between two runs."""
    return [f"{one.parent}: {name}" for name in _differing(one, other)]


def _differing(one: Path, other: Path) -> Iterator[str]:
    if _rows(one) != _rows(other):
        yield "metrics.jsonl"
    ours, theirs = (json.loads((run / "summary.json").read_text()) for run in (one, other))
    if _plain(ours) != _plain(theirs):
        yield "summary.json"
    with np.load(one / "predictions.npz") as left, np.load(other / "predictions.npz") as right:
        if set(left) != set(right) or not all(np.array_equal(left[k], right[k]) for k in left):
            yield "predictions.npz"
    for name in ("last.pt", "best.pt"):
        paths = [run / "checkpoints" / name for run in (one, other)]
        if not any(path.exists() for path in paths):  # no validation, so no best checkpoint
            continue
        states = [torch.load(path, weights_only=True) for path in paths]
        yield from (f"{name}: {key_path}" for key_path in _unequal(*states))


def _rows(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [_plain(json.loads(line)) for line in lines]


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in content.items() if not any(word in k for word in TIMINGS)}


def _unequal(one: Any, other: Any, key_path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            yield f"{key_path}: keys"
        for key in one.keys() & other.keys():
            if key not in ("seconds", "output"):
                yield from _unequal(one[key], other[key], f"{key_path}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{key_path}: lengths"
        for number, (left, right) in enumerate(zip(one, other, strict=False)):
            yield from _unequal(left, right, f"{key_path}.{number}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if not torch.equal(one, other):
            yield key_path
    elif one != other and not (isinstance(one, float) and math.isnan(one)):
        yield key_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit")
    options = parser.parse_args()
    total, moments = Kills(), random.Random(options.seed)
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as scratch:
        images = make_images(Path(scratch, "images"))
        round_ = 0
        while total.count < options.kills and time.monotonic() < end:
            for algo in algorithms():
                for data in (None, images):
                    if total.count >= options.kills:
                        break
                    kind = "digits" if data is None else "files"
                    folder = Path(scratch, f"{round_}-{algo}-{kind}")
                    folder.mkdir()
                    number = min(4, options.kills - total.count)
                    result = kill_and_compare(algo, data, number, moments, folder)
                    for name in ("count", "before_the_first_step", "in_training",
                                 "after_the_last_step", "differences"):  # fmt: skip
                        setattr(total, name, getattr(total, name) + getattr(result, name))
                    shutil.rmtree(folder)
                    print(
                        f"{total.count} kills, {algo}: {total.differences or 'equal'}", flush=True
                    )
            round_ += 1
    print(total)
    sys.exit(bool(total.differences))


if __name__ == "__main__":
    main()
