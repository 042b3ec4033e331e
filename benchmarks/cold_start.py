"""Measure how well methods choose the first images to label, with one label per class.

    python benchmarks/cold_start.py NAME=DATA... [--backbone NAME|pixels] [--seeds 0-9] [--pool]

DATA is a folder as for ``--data``, or the name of a data set. For each seed, 30 % of the images of
each class are drawn as test images, unless the data has some; a method chooses as many of the
others as there are classes, without any label; a linear probe on these is scored on the test
images, or on the images of the pool that were not chosen (``--pool``, to choose a method). Results
are in Markdown: the mean accuracy in %, the difference from random choices with its 95 % interval
over the seeds (Student's t, paired), the share of classes found, and the seconds of a choice.
Classes that are not found are never predicted.

``coreset`` is the greedy k-center of Sener and Savarese (ICLR 2018), no option of ``label next``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.load import load_table
from ssl_toolkit.data.splits.draw import hashed_order
from ssl_toolkit.inference.embed import embed_table
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.labeling.clusters import Floats, Rows, compact
from ssl_toolkit.labeling.selection import by_clusters, by_random
from ssl_toolkit.models.factory import own_image_size
from ssl_toolkit.models.probe import fit_probe, pooled_transform

Chooser = Callable[[Floats, list[str], int, int], list[int]]


def random(x: Floats, keys: list[str], budget: int, seed: int) -> list[int]:
    return [choice.position for choice in by_random(keys, budget, seed)]


def kmeans(x: Floats, keys: list[str], budget: int, seed: int) -> list[int]:
    return clusters(x, budget, seed, typical=False)


def typicality(x: Floats, keys: list[str], budget: int, seed: int) -> list[int]:
    return clusters(x, budget, seed, typical=True)


def clusters(x: Floats, budget: int, seed: int, *, typical: bool) -> list[int]:
    generator, every = np.random.Generator(np.random.PCG64(seed)), np.ones(len(x), dtype=bool)
    chosen = by_clusters(x, every, budget, generator, typical=typical)
    return [choice.position for choice in chosen]


def coreset(x: Floats, keys: list[str], budget: int, seed: int) -> list[int]:
    chosen = [int(np.random.Generator(np.random.PCG64(seed)).random() * len(x))]
    gaps = ((x - x[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < budget:
        chosen.append(int(gaps.argmax()))
        gaps = np.minimum(gaps, ((x - x[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


METHODS: dict[str, Chooser] = {
    "random": random,
    "kmeans": kmeans,
    "typicality": typicality,
    "coreset": coreset,
}


def features_of(table: ImageTable, backbone: str, size: int | None) -> Floats:
    """Return features, or the pixels at the image size."""
    rows = np.arange(len(table.keys))
    if backbone == "pixels":
        pixels = [table.read(rows[i : i + 512], size or 16) for i in range(0, len(rows), 512)]
        images = np.concatenate(pixels).reshape(len(rows), -1)
        return images[:, ::3].astype(np.float32) / 255  # the channels of gray images are equal
    return embed_table(
        table,
        rows,
        backbone=backbone,
        weights=None,
        image_size=size or own_image_size(backbone) or 224,
        device=torch.device("cpu"),
        batch_size=64,
    )


def split(table: ImageTable, seed: int) -> tuple[Rows, Rows]:
    """Return the rows of the pool and of the test images."""
    test = np.flatnonzero(table.splits == "test")
    pool = np.flatnonzero(np.isin(table.splits, ("pool", "labeled")) & (table.labels >= 0))
    if not len(test):
        groups = hashed_order(table, pool, f"cold-start/{seed}")
        test = np.sort(np.concatenate([rows[: round(0.3 * len(rows))] for rows in groups]))
        pool = np.setdiff1d(pool, test)
    return pool, test


def accuracy(features: Floats, table: ImageTable, pool: Rows, chosen: Rows, test: Rows) -> float:
    """Return the test accuracy in % of a probe on the chosen images."""
    every = torch.from_numpy(features)
    transform = pooled_transform(every[torch.from_numpy(pool)], [features.shape[1]])
    labels = torch.from_numpy(table.labels)
    head = fit_probe(every[chosen], labels[chosen], len(table.classes), transform).head
    with torch.no_grad():
        predicted = head(every[test]).argmax(dim=1)
    return 100 * float((predicted == labels[test]).double().mean())


def measure(
    name: str, data: str, backbone: str, size: int | None, seeds: range, of_pool: bool
) -> None:
    """Print the rows of a set."""
    key = "data" if Path(data).exists() else "dataset"
    table = load_table(load_config((), {key: data}, ()).settings, lazily=True)
    features = features_of(table, backbone, size)
    budget = len(table.classes)
    found: dict[str, list[tuple[float, float, float]]] = {method: [] for method in METHODS}
    for seed in seeds:
        pool, test = split(table, seed)
        keys = [table.keys[row] for row in pool.tolist()]
        x = compact(features[pool])
        for method, choose in METHODS.items():
            start = time.perf_counter()
            chosen = pool[choose(x, keys, budget, seed)]
            seconds = time.perf_counter() - start
            scored = np.setdiff1d(pool, chosen) if of_pool else test
            score = accuracy(features, table, pool, chosen, scored)
            found[method].append((score, len(np.unique(table.labels[chosen])) / budget, seconds))
    base = np.array(found["random"])[:, 0]
    for method, rows in found.items():
        values: NDArray[np.float64] = np.array(rows)
        gain = values[:, 0] - base
        half = student.ppf(0.975, len(seeds) - 1) * gain.std(ddof=1) / len(seeds) ** 0.5
        cells = f"{gain.mean():+.1f} ± {half:.1f}" if method != "random" else ""
        score, share, seconds = values.mean(axis=0)
        print(
            f"| {name} ({len(table.keys):,} images, {budget} labels) | {backbone} | {method} | "
            f"{score:.1f} | {cells} | {share:.2f} | {seconds:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--pool", action="store_true")
    options = parser.parse_args()
    print("| set | features | method | accuracy | difference | classes found | seconds |")
    print("|---|---|---|---|---|---|---|")
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last) + 1)
    for one in options.sets:
        name, _, data = one.partition("=")
        measure(name, data or name, options.backbone, options.image_size, seeds, options.pool)


if __name__ == "__main__":
    main()
