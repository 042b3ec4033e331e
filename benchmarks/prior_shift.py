"""Measure ``predict --prior estimate`` on test images whose class shares are shifted.

Each run trains FixMatch on 10 labels per class. Its test predictions are then drawn with ratios of
the first class to the last (1: all of them), adjusted to estimated class shares, and scored.

    OMP_NUM_THREADS=1 python benchmarks/prior_shift.py FOLDER [--seeds 5]

Finished runs in FOLDER are used again. A seed takes 20 s on the digits and 3 min on MNIST-5k (CPU).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit import train
from ssl_toolkit.data.splits.imbalance import longest_tail
from ssl_toolkit.runs.class_shares import (
    adjust_probabilities,
    calibrated,
    estimate_class_shares,
)
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.pool_shares import calibrated_validation, temperature_of
from ssl_toolkit.runs.predictions import read_arrays
from ssl_toolkit.runs.scoring import scores

SETS: dict[str, dict[str, Any]] = {
    "digits": {"steps": 300},
    "mnist5k": {"steps": 150, "val_fraction": 0.1},
}
RATIOS = (1.0, 20.0, 1 / 20)


def predictions(folder: Path, dataset: str, seed: int) -> dict[str, NDArray[Any]]:
    """Train a run unless it is finished, and return its predictions."""
    run = RunFolder(folder / f"{dataset}-{seed}")
    if not run.predictions.exists():
        keys = {"dataset": dataset, "algo": "fixmatch", "labels_per_class": 10, "seed": seed}
        train({"output": run.path, **keys, **SETS[dataset]})
    return read_arrays(run.predictions)


def measure(arrays: dict[str, NDArray[Any]], ratio: float, seed: int) -> list[float]:
    """Return accuracy and balanced accuracy before and after, and the share of intervals right."""
    probs, labels = arrays["test_probabilities"], arrays["test_labels"]
    classes = tuple(map(str, arrays["classes"]))
    if ratio != 1:
        rng = np.random.default_rng(seed)
        counts = longest_tail(np.bincount(labels, minlength=len(classes)).tolist(), ratio)
        rows = [
            rng.permutation(np.flatnonzero(labels == label))[:count]
            for label, count in enumerate(counts)
        ]
        drawn = np.concatenate(rows)
        probs, labels = probs[drawn], labels[drawn]
    even = np.full(len(classes), 1 / len(classes))
    validation = arrays["validation_probabilities"], arrays["validation_labels"]
    temperature = temperature_of(*validation)
    tempered = calibrated(probs, temperature)
    known = calibrated_validation(*validation, temperature)
    estimate = estimate_class_shares(tempered, even, validation=known)
    after = adjust_probabilities(tempered, estimate.shares, even).astype(np.float32)
    before, adjusted = scores(probs, labels, classes), scores(after, labels, classes)
    true = np.bincount(labels, minlength=len(classes)) / len(labels)
    right = np.mean((estimate.lower <= true) & (true <= estimate.upper))
    names = ("accuracy", "balanced_accuracy")
    return [*(one[name] for name in names for one in (before, adjusted)), float(right)]


def main() -> None:
    """Print a row for each data set and ratio: means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", default=",".join(SETS))
    options = parser.parse_args()
    print("| data | ratio | accuracy | adjusted | balanced | adjusted | intervals right |")
    print("|---|---|---|---|---|---|---|")
    for dataset in options.sets.split(","):
        runs = [predictions(options.folder, dataset, seed) for seed in range(options.seeds)]
        for ratio in RATIOS:
            rows = [measure(arrays, ratio, seed) for seed, arrays in enumerate(runs)]
            means = [f"{statistics.fmean(column):.4f}" for column in zip(*rows, strict=True)]
            print(f"| {dataset} | {ratio:g} | {' | '.join(means)} |")


if __name__ == "__main__":
    main()
