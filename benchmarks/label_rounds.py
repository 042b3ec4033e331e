"""Compare methods over rounds of labeling: the accuracy of a linear probe on the labels.

    python benchmarks/label_rounds.py NAME=DATA... [--rounds 6] [--seeds 0-4] [--pool]

Sets, splits, features and scores are those of ``cold_start.py``. In each round a method chooses as
many images as there are classes. The first round of ``margin`` and ``badge`` is that of ``kmeans``;
as long as fewer than two classes have labels, so are later ones. Prints the mean accuracy in %
after each round in Markdown.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from cold_start import accuracy, features_of, split

from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.load import load_table
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.labeling.clusters import Floats, Rows
from ssl_toolkit.labeling.next import by_probe, choose
from ssl_toolkit.labeling.pool import Pool
from ssl_toolkit.labeling.selection import METHODS, NEED_LABELS, Method


def simulate(
    method: Method,
    table: ImageTable,
    features: Floats,
    rows: Rows,
    test: Rows | None,
    rounds: int,
    seed: int,
) -> list[float]:
    """Return the accuracy after each round, on test images or on the others of the pool."""
    pool = Pool(table, table.classes, rows[:0], table.labels[:0], rows)
    scores = []
    for number in range(rounds):
        embedding = by_probe(features[pool.rows], pool)
        early = embedding.probabilities is None and method in NEED_LABELS
        current = "kmeans" if early else method
        chosen = choose(pool, embedding, len(table.classes), current, 1000 * seed + number)
        new = pool.candidates[[choice.position for choice in chosen]]
        labeled = np.sort(np.concatenate([pool.labeled, new]))
        pool = replace(
            pool,
            labeled=labeled,
            labels=table.labels[labeled],
            candidates=np.setdiff1d(rows, labeled),
        )
        scored = pool.candidates if test is None else test
        scores.append(accuracy(features, table, rows, labeled, scored))
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--pool", action="store_true")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last) + 1)
    print("| set | method |" + "".join(f" round {n + 1} |" for n in range(options.rounds)) + " s |")
    print("|---" * (options.rounds + 3) + "|")
    for one in options.sets:
        name, _, data = one.partition("=")
        data = data or name
        key = "data" if Path(data).exists() else "dataset"
        table = load_table(load_config((), {key: data}, ()).settings, lazily=True)
        features = features_of(table, options.backbone, options.image_size)
        for method in METHODS:
            start, scores = time.perf_counter(), []
            for seed in seeds:
                rows, test = split(table, seed)
                held = None if options.pool else test
                scores.append(simulate(method, table, features, rows, held, options.rounds, seed))
            cells = "".join(f" {score:.1f} |" for score in np.mean(scores, axis=0))
            seconds = (time.perf_counter() - start) / len(seeds)
            print(f"| {name} | {method} |{cells} {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
