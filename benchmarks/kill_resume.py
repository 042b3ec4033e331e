"""Kill runs with SIGKILL at random moments, go on with them, and compare with runs that were not.

    python benchmarks/kill_resume.py --kills 200

Every registered algorithm takes part, on the embedded digits and on a folder of images that
threads read. What is compared bit for bit: the rows of metrics without their timings, all of the
last checkpoint and of the best one, the predictions, and the summary.
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

# A server that has imported everything once and forks from then on: starts cost no seconds.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["ssl_toolkit.runs.train", "ssl_toolkit.commands.run"])


@dataclass
class Kills:
    """How many there were, and what they hit."""

    count: int = 0
    before_the_first_step: int = 0
    in_training: int = 0
    after_the_last_step: int = 0
    differences: list[str] = field(default_factory=list)


def algorithms() -> list[str]:
    """The built-in ones that take steps; others have none to be killed between."""
    names = [entry.name for entry in registry.entries("algorithms") if entry.built_in]
    return [n for n in names if not issubclass(registry.load("algorithms", n), FeatureAlgorithm)]


def make_images(folder: Path) -> Path:
    """Four classes of noisy colors: 16 labeled, 24 unlabeled, 12 test images."""
    drawn = np.random.default_rng(0)
    for place in range(52):
        label = place % 4
        part = "labeled" if place < 16 else "test" if place < 28 else "unlabeled"
        target = folder / part / ("abcd"[label] if part != "unlabeled" else "") / f"{place}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels = drawn.integers(0, 90, (24, 24, 3)) + 40 * label
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
        # It needs labels of the unlabeled images: the labeled ones are a pool then.
        data[1] = str(images / "labeled")
        data += ["--labels-per-class", "1", "--test-fraction", "0.25"]
    return ["run", "--algo", algo, *data, *LENGTH, "--continue", "--output", str(output)]


def finished(process: Any, log: Path) -> None:
    process.join(300)
    if process.exitcode != 0:
        raise RuntimeError(f"exit status {process.exitcode}:\n{log.read_text()}")


def kill_and_compare(
    algo: str, images: Path | None, number: int, moments: random.Random, scratch: Path
) -> Kills:
    """Run an algorithm through once, and once with a number of kills; compare the two."""
    kills = Kills()
    through, broken, log = (scratch / name for name in ("through", "broken", "log.txt"))
    caches = (scratch / "cache-1", scratch / "cache-2")
    began = time.monotonic()
    finished(start(arguments_of(algo, images, through), log, caches[0]), log)
    duration = time.monotonic() - began
    while kills.count < number:
        begun = (broken / "summary.json").exists()
        again = ["resume", str(broken), "--quiet"]
        if begun and json.loads((broken / "summary.json").read_text())["status"] == "completed":
            # It was faster than the killer: look at it, and begin once more.
            kills.differences += differences(through, broken)
            for folder in (broken, caches[1]):
                shutil.rmtree(folder, ignore_errors=True)
            begun = False
        arguments = again if begun else arguments_of(algo, images, broken)
        process = start(arguments, log, caches[1])
        process.join(moments.uniform(0, duration))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills.count += 1
            _note(kills, broken)
        elif process.exitcode != 0:
            raise RuntimeError(f"exit status {process.exitcode}:\n{log.read_text()}")
    finished(start(arguments_of(algo, images, broken), log, caches[1]), log)
    kills.differences += differences(through, broken)
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
    """Names of what differs between two runs, none when nothing does."""
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
        if not any(path.exists() for path in paths):  # no validation, no best one
            continue
        states = [torch.load(path, weights_only=True) for path in paths]
        yield from (f"{name}: {place}" for place in _unequal(*states))


def _rows(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [_plain(json.loads(line)) for line in lines]


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in content.items() if not any(word in k for word in TIMINGS)}


def _unequal(one: Any, other: Any, place: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            yield f"{place}: keys"
        for key in one.keys() & other.keys():
            if key not in ("seconds", "output"):
                yield from _unequal(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{place}: lengths"
        for number, (left, right) in enumerate(zip(one, other, strict=False)):
            yield from _unequal(left, right, f"{place}.{number}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if not torch.equal(one, other):
            yield place
    elif one != other and not (isinstance(one, float) and math.isnan(one)):
        yield place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after these")
    given = parser.parse_args()
    total, moments, began = Kills(), random.Random(given.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        images = make_images(Path(scratch, "images"))
        turn = 0
        while total.count < given.kills and time.monotonic() - began < 60 * given.minutes:
            for algo in algorithms():
                for data in (None, images):
                    if total.count >= given.kills:
                        break
                    folder = Path(scratch, f"{turn}-{algo}-{'digits' if data is None else 'own'}")
                    folder.mkdir()
                    number = min(4, given.kills - total.count)
                    found = kill_and_compare(algo, data, number, moments, folder)
                    for name in ("count", "before_the_first_step", "in_training",
                                 "after_the_last_step", "differences"):  # fmt: skip
                        setattr(total, name, getattr(total, name) + getattr(found, name))
                    shutil.rmtree(folder)
                    print(
                        f"{total.count} kills, {algo}: {total.differences or 'equal'}", flush=True
                    )
            turn += 1
    print(total)
    sys.exit(bool(total.differences))


if __name__ == "__main__":
    main()
