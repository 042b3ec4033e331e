"""What only a GPU can show, in a few minutes: precision, resuming, memory, synchronized BatchNorm.

    python benchmarks/gpu_smoke.py [--device cuda] [--steps 50]

One row a check, under the hardware and versions; exit status 1 when one failed:
- each algorithm in fp32, bf16 and fp16, and SimPLE with a ResNet-50 at 84 px: it ends, its loss is
  finite and falls; images per second and peak memory;
- each algorithm stopped by a time limit and resumed: weights within 1e-3 of those of a run that
  went through (a GPU adds in no fixed order);
- a batch that no card holds: one line of advice, exit status 1, no traceback;
- with two GPUs: two processes under ``model.sync_batchnorm`` come to what one comes to.
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
    given = parser.parse_args()
    device = choose_device(given.device)
    print(describe(device), json.dumps(versions()))
    common = {"steps": given.steps, "device": given.device, "dataset": "digits"}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for check in (precisions, resuming, memory, synchronized):
            for name, good, told in check(common, Path(folder)):
                failed += not good
                print(
                    f"{'ok  ' if good else 'FAIL'} {check.__name__:12} {name:34} {told}", flush=True
                )
    return int(failed > 0)


Rows = Iterator[tuple[str, bool, str]]


def precisions(common: dict[str, Any], folder: Path) -> Rows:
    """Each algorithm in each precision."""
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
        told = f"supervised loss {first:.3f} to {last:.3f}, {rate:.0f} images/s, {peak:.0f} MiB"
        yield name, last < first, told


def resuming(common: dict[str, Any], folder: Path) -> Rows:
    """A run in two parts against one in one part."""
    for algo in algorithms():
        keys = common | SMALL | {"algo": algo, "save_every": 1}
        whole, parted = folder / f"{algo}-whole", folder / f"{algo}-parted"
        ssl_toolkit.train(keys | {"output": str(whole)})
        parts = 0
        ssl_toolkit.train(keys | {"output": str(parted), "time_limit": 0.01})
        while json.loads((parted / "summary.json").read_text())["status"] != "completed":
            parts += 1
            resume(parted)
        one, other = (load_file(run / "model" / "model.safetensors") for run in (whole, parted))
        apart = max(float((one[key].float() - other[key].float()).abs().max()) for key in one)
        yield f"{algo} in {parts + 1} parts", apart < 1e-3, f"weights apart at most {apart:.1e}"


def memory(common: dict[str, Any], folder: Path) -> Rows:
    """More than any card holds."""
    arguments = ["--algo", "supervised", "--backbone", "resnet50", "--image-size", "1024",
                 "--batch-size", "4096", "--device", common["device"], "--dataset", "digits",
                 "--steps", "2", "--output", str(folder / "large")]  # fmt: skip
    if not torch.cuda.is_available():
        return
    command = [sys.executable, "-m", "ssl_toolkit", "run", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = ended.stderr.splitlines()
    good = ended.returncode == 1 and len(lines) == 1 and "--batch-size" in lines[0]
    yield "a batch that is too large", good, " / ".join(lines)[:200]


def synchronized(common: dict[str, Any], folder: Path) -> Rows:
    """Two GPUs that share a batch, BatchNorm included."""
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
    apart = max(float((weights[0][key] - weights[1][key]).abs().max()) for key in weights[0])
    yield "two GPUs, SyncBatchNorm", apart < 1e-3, f"weights apart at most {apart:.1e}"


def algorithms() -> list[str]:
    return [entry.name for entry in registry.entries("algorithms") if entry.built_in]


if __name__ == "__main__":
    sys.exit(main())
