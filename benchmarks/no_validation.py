"""Choose the step and the algorithm without validation images: what works, in test accuracy lost.

    python benchmarks/no_validation.py run OUTPUT.jsonl --data digits --seeds 3 [--steps 120]
    python benchmarks/no_validation.py report OUTPUT.jsonl...

``run`` trains several algorithms in this process and appends a line for each: at every evaluation
the accuracy on test and validation images, and scores that need no label (below). ``--folds K``
trains each K times more, without a part of the labels, and scores that part. Finished lines are
kept, so that a call resumes. DATA is the name of a data set, a folder or a file of features.

``report`` prints, for each way to choose, the regret: the test accuracy of the best choice minus
that of the choice, in points, as a mean over data sets, algorithms and seeds. Test images measure
here, and choose nothing.

Scores of the pool, by the averaged weights:

confidence    mean of the largest probability
entropy       minus the mean entropy
information   entropy of the mean prediction minus the mean entropy (Krause et al., 2010)
nuclear       nuclear norm of the predictions (Cui et al., BNM, 2020)
density       soft neighborhood density (Saito et al., ICCV 2021)
rank          effective rank of the features (Garrido et al., RankMe, 2023)
agreement     share of images whose weak and strong views have the same prediction
silhouette    silhouette of the features with the predicted classes
clusters      adjusted mutual information of k-means clusters and predicted classes
labels        minus the loss on the labeled images
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, silhouette_score

from ssl_toolkit.config.loading import load_config
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.models.classifier import in_eval_mode

POOL = 400
"""Maximum number of unlabeled images that are scored."""
SCORES = (
    "confidence", "entropy", "information", "nuclear", "density", "rank", "agreement",
    "silhouette", "clusters", "labels",
)  # fmt: skip
IMAGES = {
    "supervised": {"algo": "supervised"},
    "fixmatch": {"algo": "fixmatch", "fixmatch": {"unlabeled_ratio": 3}},
    "fixmatch 0.7": {
        "algo": "fixmatch",
        "fixmatch": {"unlabeled_ratio": 3, "confidence_threshold": 0.7},
    },
    "simple": {"algo": "simple"},
    "pseudo_label": {"algo": "pseudo_label"},
}
FEATURES = {
    name: {"algo": name}
    for name in (
        "linear_probe", "knn", "label_spreading", "graph_probe",
        "supervised", "fixmatch", "pseudo_label",
    )
}  # fmt: skip
"""The first four fit a head at once: they have no steps to choose from."""
TUNED = {name: {"algo": name} for name in ("supervised", "pseudo_label")}
"""With ``--pretrained``: the whole backbone is trained."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("output", type=Path)
    command.add_argument("--data", required=True)
    command.add_argument("--seeds", type=int, default=3)
    command.add_argument("--steps", type=int, default=120)
    command.add_argument("--evaluations", type=int, default=10)
    command.add_argument("--labels", type=int, default=4, help="labels per class")
    command.add_argument("--folds", type=int, default=2)
    command.add_argument("--pretrained", action="store_true", help="fine-tune published weights")
    command.add_argument("--val-fraction", type=float)
    command.add_argument("--test-fraction", type=float)
    commands.add_parser("report").add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        run(arguments)
    else:
        report([json.loads(line) for file in arguments.files for line in file.open()])


def run(arguments: argparse.Namespace) -> None:
    """Train what is missing in the output."""
    features = arguments.data.endswith(".npz")
    is_path = features or "/" in arguments.data
    shared = {
        "data" if is_path else "dataset": arguments.data,
        "labels_per_class": arguments.labels,
        "steps": arguments.steps,
        "eval_every": max(1, arguments.steps // arguments.evaluations),
        "val_fraction": arguments.val_fraction,
        "test_fraction": arguments.test_fraction,
        "batch_size": 16,
    }
    shared = {key: value for key, value in shared.items() if value is not None}
    if arguments.pretrained:
        shared |= {"pretrained": True, "backbone": "tf_efficientnet_lite0", "image_size": 64}
    candidates = FEATURES if features else TUNED if arguments.pretrained else IMAGES
    done = set()
    if arguments.output.exists():
        with arguments.output.open() as file:
            done = {(one["algo"], one["seed"]) for one in map(json.loads, file)}
    for seed in range(arguments.seeds):
        for name, tree in candidates.items():
            if (name, seed) in done:
                continue
            started = time.process_time()
            config = load_config([], {**shared, **tree, "seed": seed})
            whole = prepare(config)
            rows = train(whole, scored=True)
            folds = [train(part) for part in parts(whole, config, arguments.folds)]
            line = {
                "data": Path(arguments.data).stem + " tuned" * arguments.pretrained,
                "algo": name,
                "seed": seed,
                "counts": {
                    key: len(getattr(whole.split, key))
                    for key in ("labeled", "unlabeled", "validation", "test")
                },
                "rows": rows,
                "folds": [[row["validation"] for row in fold] for fold in folds],
                "seconds": round(time.process_time() - started, 1),
            }
            with arguments.output.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, seed, rows[-1]["test"], line["seconds"], flush=True)


def parts(whole: Experiment, config: Any, folds: int) -> Iterator[Experiment]:
    """Yield the experiment without a fold of the labels, which are its validation images."""
    labeled = whole.split.labeled
    labels = whole.table.labels[labeled]
    fold = np.zeros(len(labeled), int)
    for label in np.unique(labels):
        fold[labels == label] = np.arange((labels == label).sum()) % folds
    for k in range(folds if folds > 1 else 0):
        split = replace(whole.split, labeled=labeled[fold != k], validation=labeled[fold == k])
        yield prepare(config, table=whole.table, split=split)


def train(experiment: Experiment, *, scored: bool = False) -> list[dict[str, float]]:
    """Train, and return a row for each evaluation."""
    trainer = experiment.trainer
    rows: list[dict[str, float]] = []

    def observe(row: dict[str, float]) -> None:
        if "validation.accuracy" not in row:
            return
        found = {"step": row["step"], "validation": row["validation.accuracy"]}
        if scored:
            indices, labels = trainer.validation
            few = torch.arange(
                0, len(indices), max(1, len(indices) // len(trainer.batches.images.labels))
            )
            found["few"] = accuracy(trainer.predict(indices[few]), labels[few])
            found["test"] = accuracy(trainer.predict(experiment.test[0]), experiment.test[1])
            found |= scores(experiment)
        rows.append(found)

    trainer.observers.append(observe)
    trainer.fit()
    return rows


def accuracy(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    return float((probabilities.argmax(1) == labels.cpu()).float().mean())


def scores(experiment: Experiment) -> dict[str, float]:
    """Return the scores of the pool, each higher for what should be better."""
    trainer = experiment.trainer
    images = trainer.batches.images
    indices = images.unlabeled[:: max(1, len(images.unlabeled) // POOL)][:POOL]
    probs = trainer.predict(indices).double().numpy()
    mean = probs.mean(0)
    entropy = float(-(probs * np.log(probs + 1e-12)).sum(1).mean())
    found = {
        "confidence": float(probs.max(1).mean()),
        "entropy": -entropy,
        "information": float(-(mean * np.log(mean + 1e-12)).sum()) - entropy,
        "nuclear": float(np.linalg.norm(probs, "nuc")),
        "density": density(probs),
    }
    with torch.no_grad(), in_eval_mode(trainer.predictor):
        source = images.inputs
        batches = [source.gather(chunk) for chunk in torch.split(indices, 100)]
        outputs = [trainer.predictor.forward(batch) for batch in batches]
        views = [[augmenter(b) for b in batches] for augmenter in trainer.augmenters]
        classes = [
            torch.cat([trainer.predictor.forward(v).logits.argmax(1) for v in of]) for of in views
        ]
        labeled = trainer.predict(images.labeled)
    features = torch.cat([output.features for output in outputs]).double().numpy()
    guesses = probs.argmax(1)
    values = np.linalg.svd(features, compute_uv=False)
    share = values / values.sum() + 1e-7
    found["rank"] = float(np.exp(-(share * np.log(share)).sum()))
    agree = classes[0] == classes[-1] if classes else torch.tensor([torch.nan])  # features: none
    found["agreement"] = float(agree.float().mean())
    several = 1 < len(np.unique(guesses)) < len(guesses)
    found["silhouette"] = float(silhouette_score(features, guesses)) if several else -1.0
    clusters = KMeans(probs.shape[1], n_init=2, random_state=0).fit_predict(features)
    found["clusters"] = float(adjusted_mutual_info_score(clusters, guesses))
    picked = labeled[torch.arange(len(labeled)), images.labels.cpu()]
    found["labels"] = float(picked.clamp(min=1e-12).log().mean())
    return found


def density(probs: np.ndarray[Any, Any], temperature: float = 0.05) -> float:
    """Return the mean entropy of the similarities of predictions to those of other images."""
    unit = probs / np.linalg.norm(probs, axis=1, keepdims=True)
    similar = unit @ unit.T / temperature
    np.fill_diagonal(similar, -np.inf)
    weights = np.exp(similar - similar.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return float(-(weights * np.log(weights + 1e-12)).sum(1).mean())


def report(lines: list[dict[str, Any]]) -> None:
    """Print the regrets of the steps and of the algorithms."""
    ways = ("validation", "few", "folds", "last", "any", *SCORES)
    steps: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rows_of: dict[tuple[str, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        rows_of[line["data"], line["seed"]][line["algo"]] = line
        if len(line["rows"]) > 1:
            test = np.array([row["test"] for row in line["rows"]])
            for way in ways:
                steps[line["data"]][way].append(100 * (test.max() - chosen(line, way, test)))
    print("Regret of the step, in points of test accuracy\n")
    table(ways, steps)
    algorithms: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    most: dict[str, int] = defaultdict(int)
    for (data, _), of in rows_of.items():
        most[data] = max(most[data], len(of))
    for (data, _), of in rows_of.items():
        if len(of) < most[data] or len(of) < 3:
            continue  # a seed that lacks an algorithm, or too few to choose from
        test = np.array([line["rows"][-1]["test"] for line in of.values()])
        for way in ways:
            if way == "last":
                continue
            if way == "any":
                value = test.mean()
            elif way == "folds":
                folds = [[fold[-1] for fold in line["folds"]] for line in of.values()]
                value = test[best(np.mean(folds, axis=1))] if all(folds) else np.nan
            else:
                value = test[best([line["rows"][-1][way] for line in of.values()])]
            algorithms[data][way].append(100 * (test.max() - value))
    print("\nRegret of the algorithm at its last step, in points of test accuracy\n")
    table([way for way in ways if way != "last"], algorithms)


def chosen(line: dict[str, Any], way: str, test: np.ndarray[Any, Any]) -> float:
    """Return the test accuracy of the step that a way chooses."""
    if way == "last":
        return float(test[-1])
    if way == "any":
        return float(test.mean())
    if way == "folds":
        return float(test[best(np.mean(line["folds"], axis=0))]) if line["folds"] else np.nan
    return float(test[best([row[way] for row in line["rows"]])])


def best(values: Any) -> int:
    """Return the last of the highest values."""
    array = np.nan_to_num(np.asarray(values, float), nan=-np.inf)
    return int(len(array) - 1 - array[::-1].argmax())


def table(ways: Any, found: dict[str, dict[str, list[float]]]) -> None:
    """Print a row per way, and a column per data set with its mean."""
    print("| chosen by |", " | ".join(found), "| mean |")
    print("|---|" + "---|" * (len(found) + 1))
    for way in ways:
        means = [float(np.mean(found[data][way])) for data in found]
        print(f"| {way} |", " | ".join(f"{m:.1f}" for m in means), f"| {np.mean(means):.1f} |")
    counts = ", ".join(f"{data} {len(next(iter(of.values())))}" for data, of in found.items())
    print(f"\nn: {counts}")


if __name__ == "__main__":
    main()
