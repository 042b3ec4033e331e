"""Check in a few minutes what needs a GPU: precision, resuming, memory, synchronized BatchNorm.

    python benchmarks/gpu_smoke.py [--device cuda] [--steps 50]

Prints the hardware, the versions and one row per check; the exit status is 1 if a check fails.

- Each algorithm in fp32, bf16 and fp16, and SimPLE with ResNet-50 at 84 px: the run completes with
  a finite, decreasing loss. Prints images per second and peak memory.
- Each algorithm, interrupted by a time limit and resumed: the weights differ by less than 1e-3 from
  those of an uninterrupted run (a GPU does not add in a fixed order).
- A batch too large for any GPU: one line of advice, exit status 1, no traceback.
- With two GPUs: two processes with ``model.sync_batchnorm`` give the weights of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import ssl_toolkit
from ssl_toolkit import registry
from ssl_toolkit.engine.devices import choose_device, describe
from ssl_toolkit.runs.record import versions
from ssl_toolkit.runs.resume import resume

SMALL = {"backbone": "wrn_28_2", "image_size": 32, "batch_size": 32}
LARGE = {"backbone": "resnet50", "image_size": 84, "batch_size": 16}
PRECISIONS = ("fp32", "bf16", "fp16")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    device = choose_device(options.device)
    print(describe(device), json.dumps(versions()))
    common = {"steps": options.steps, "device": options.device, "dataset": "digits"}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for check in (precisions, resuming, memory, synchronized):
            for name, passed, detail in check(common, Path(folder)):
                failed += not passed
                print(
                    f"{'ok  ' if passed else 'FAIL'} {check.__name__:12} {name:34} {detail}",
                    flush=True,
                )
    return int(failed > 0)


Rows = Iterator[tuple[str, bool, str]]


def precisions(common: dict[str, Any], folder: Path) -> Rows:
    """Train with each algorithm in each precision."""
    runs = [SMALL | {"algo": algo, "precision": p} for algo in algorithms() for p in PRECISIONS]
    runs += [LARGE | {"algo": "simple", "precision": p} for p in PRECISIONS]
    for keys in runs:
        name = f"{keys['algo']} {keys['backbone']} {keys['precision']}"
        output = folder / name.replace(" ", "-")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        try:
            outcome = ssl_toolkit.train(common | keys | {"output": str(output), "log_every": 1})
        except Exception as error:
            yield name, False, f"{type(error).__name__}: {error}"
            continue
        lines = (output / "metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["train.loss.supervised"] for line in lines]
        first, last = (sum(part) / len(part) for part in (losses[:5], losses[-5:]))
        peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0
        rate = outcome.summary.images_per_second
        detail = f"supervised loss {first:.3f} to {last:.3f}, {rate:.0f} images/s, {peak:.0f} MiB"
        yield name, last < first, detail


def resuming(common: dict[str, Any], folder: Path) -> Rows:
    """Compare runs that were interrupted and resumed with uninterrupted ones."""
    for algo in algorithms():
        keys = common | SMALL | {"algo": algo, "save_every": 1}
        whole, resumed = folder / f"{algo}-whole", folder / f"{algo}-resumed"
        ssl_toolkit.train(keys | {"output": str(whole)})
        resumes = 0
        ssl_toolkit.train(keys | {"output": str(resumed), "time_limit": 0.01})
        while json.loads((resumed / "summary.json").read_text())["status"] != "completed":
            resumes += 1
            resume(resumed)
        one, other = (load_file(run / "model" / "model.safetensors") for run in (whole, resumed))
        difference = max(float((one[key].float() - other[key].float()).abs().max()) for key in one)
        name = f"{algo}, resumed {resumes} times"
        yield name, difference < 1e-3, f"weights differ by {difference:.1e}"


def memory(common: dict[str, Any], folder: Path) -> Rows:
    """Train with a batch too large for any GPU."""
    arguments = ["--algo", "supervised", "--backbone", "resnet50", "--image-size", "1024",
                 "--batch-size", "4096", "--device", common["device"], "--dataset", "digits",
                 "--steps", "2", "--output", str(folder / "large")]  # fmt: skip
    if not torch.cuda.is_available():
        return
    command = [sys.executable, "-m", "ssl_toolkit", "run", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = process.stderr.splitlines()
    passed = process.returncode == 1 and len(lines) == 1 and "--batch-size" in lines[0]
    yield "batch too large", passed, " / ".join(lines)[:200]


def synchronized(common: dict[str, Any], folder: Path) -> Rows:
    """Compare two GPUs with SyncBatchNorm with one GPU."""
    if torch.cuda.device_count() < 2:
        return
    weights = []
    for devices in (1, 2):
        output = folder / f"sync-{devices}"
        sets = ["model.sync_batchnorm=true", "optimizer.name=sgd", f"steps={common['steps']}"]
        command = [sys.executable, "-m", "ssl_toolkit", "run", "--algo", "fixmatch", "--dataset",
                   "digits", "--backbone", "wrn_28_2", "--batch-size", "32", "--device", "cuda",
                   "--devices", str(devices), "--output", str(output), "--quiet",
                   *(part for key in sets for part in ("--set", key))]  # fmt: skip
        subprocess.run(command, check=True, env=os.environ)
        weights.append(load_file(output / "model" / "model.safetensors"))
    difference = max(float((weights[0][key] - weights[1][key]).abs().max()) for key in weights[0])
    yield "two GPUs, SyncBatchNorm", difference < 1e-3, f"weights differ by {difference:.1e}"


def algorithms() -> list[str]:
    return [entry.name for entry in registry.entries("algorithms") if entry.built_in]


if __name__ == "__main__":
    sys.exit(main())
