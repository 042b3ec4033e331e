"""Run every algorithm 50 steps on the GPU in fp32 and bf16, and SimPLE with a ResNet-50 at 84 px.

    python benchmarks/gpu_smoke.py [DEVICE]

Prints one row a run (status, last loss, images per second, peak memory), with the hardware and
versions above them. A run that fails is a row too, and the exit status is then 1.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import ssl_toolkit
from ssl_toolkit import registry
from ssl_toolkit.engine.devices import choose_device, describe
from ssl_toolkit.results.record import versions

STEPS = 50


def main() -> int:
    device = choose_device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    print(describe(device), json.dumps(versions()))
    common = {"steps": STEPS, "device": str(device), "dataset": "digits"}
    small = {"backbone": "wrn_28_2", "image_size": 32, "batch_size": 32}
    large = {"backbone": "resnet50", "image_size": 84, "batch_size": 16}
    runs: list[dict[str, Any]] = [
        {**common, **small, "algo": entry.name, "precision": precision}
        for entry in registry.entries("algorithms")
        if entry.built_in
        for precision in ("fp32", "bf16")
    ]
    runs += [{**common, **large, "algo": "simple", "precision": p} for p in ("fp32", "bf16")]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, keys in enumerate(runs):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            name = f"{keys['algo']:18} {keys['backbone']:9} {keys['precision']}"
            try:
                outcome = ssl_toolkit.train({**keys, "output": str(Path(folder, str(number)))})
            except Exception as error:
                failed += 1
                print(f"{name}  failed: {type(error).__name__}: {error}")
                continue
            lines = (outcome.folder / "metrics.jsonl").read_text().splitlines()
            loss = json.loads(lines[-1])["train.loss"]
            peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0
            print(
                f"{name}  {outcome.summary['status']}  loss {loss:.4f}  "
                f"{outcome.summary['images_per_second']:.0f} images/s  {peak:.0f} MiB"
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
