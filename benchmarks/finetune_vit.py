"""Fine-tune a small ViT by head alone, by layer-wise rates and drop path, and by LoRA.

    python benchmarks/finetune_vit.py OUTPUT [--seeds 0,1,2] [--pretraining-steps N] [--steps N]

First, a ViT (timm's ``vit_tiny_patch16_224`` with 4 blocks, images of 16 pixels in patches of 4) is
trained on the 3,560 unlabeled and 40 labeled digits of MNIST-5k with their labels. Its folder is
then the backbone of each row, which is trained on the embedded digits, 4 labels per class. Runs
that are finished are not repeated. Prints the accuracies, and the differences from the head alone
with intervals by Student's t and p-values of paired t-tests, adjusted by Holm's method.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import ssl_toolkit

TRAINED: dict[str, Any] = {"model": {"freeze": "none", "args": {"drop_path_rate": 0.1}}}
ROWS: dict[str, dict[str, Any]] = {
    "head alone": {"model": {"freeze": "backbone"}},
    "layer decay 0.75, drop path 0.1": TRAINED | {"optimizer": {"layer_decay": 0.75}},
    "LoRA, rank 8, drop path 0.1": {
        "model": {"args": {"drop_path_rate": 0.1}},
        "lora": {"rank": 8},
    },
    "all weights at one rate": {"model": {"freeze": "none"}},
}
BASELINE = "head alone"


def pretrain(output: Path, steps: int) -> Path:
    """Return the folder of the model that is fine-tuned."""
    run(
        output / "pretrained",
        algo="fully_supervised",
        dataset="mnist5k",
        backbone="vit_tiny_patch16_224",
        model={"args": {"img_size": 16, "patch_size": 4, "depth": 4}},
        lr=0.001,
        schedule={"name": "cosine", "cycles": 0.5, "warmup_steps": 50},
        steps=steps,
    )
    return output / "pretrained" / "model"


def run(folder: Path, **keys: Any) -> dict[str, Any]:
    """Train a run that is not finished, and return its summary."""
    path = folder / "summary.json"
    if not path.exists():
        started = time.time()
        ssl_toolkit.train({**keys, "device": "cpu", "output": str(folder)})
        print(f"{folder}: {time.time() - started:.0f} s", flush=True)
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--pretraining-steps", type=int, default=1400)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = pretrain(arguments.output, arguments.pretraining_steps)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    accuracies = {}
    for number, (name, keys) in enumerate(ROWS.items()):
        summaries = [
            run(
                arguments.output / f"row{number}-s{seed}",
                algo="supervised",
                dataset="digits",
                backbone=f"local-dir:{model}",
                pretrained=True,
                image_size=16,
                steps=arguments.steps,
                seed=seed,
                **keys,
            )
            for seed in seeds
        ]
        accuracies[name] = np.array([100 * one["test"]["accuracy"] for one in summaries])
    report(accuracies)


def report(accuracies: dict[str, np.ndarray]) -> None:
    others = [name for name in accuracies if name != BASELINE]
    tests = {n: stats.ttest_rel(accuracies[n], accuracies[BASELINE]) for n in others}
    adjusted, highest = {}, 0.0
    for rank, name in enumerate(sorted(others, key=lambda n: tests[n].pvalue)):
        highest = max(highest, min(1.0, (len(others) - rank) * tests[name].pvalue))
        adjusted[name] = highest
    print("| row | test accuracy, mean ± sd (%) | each seed (%) | difference | p (Holm) |")
    for name, values in accuracies.items():
        cells = [name, f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"]
        cells.append(", ".join(f"{value:.1f}" for value in values))
        if name in tests:
            low, high = tests[name].confidence_interval(0.95)
            mean = (values - accuracies[BASELINE]).mean()
            cells += [f"{mean:+.1f} ({low:+.1f} to {high:+.1f})", f"{adjusted[name]:.3f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
