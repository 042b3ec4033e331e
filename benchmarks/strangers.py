"""Measure scores of "this image belongs to no class", for `predict --reject`.

docs/how-to/strangers.md has the results.

    OMP_NUM_THREADS=1 python benchmarks/strangers.py OUT --data FOLDER [--strangers FOLDER] -- FLAGS

FOLDER contains a folder of images for each class. With ``--strangers``, the images of that folder
are the strangers; without it, those of every third class, from the class of the number of the seed,
so that each class is left out once in three seeds. For each seed, ``ssl-toolkit run`` trains on the
other classes with the FLAGS, unless the run in OUT is finished. ``OUT/seed-N.json`` holds the AUROC
of each score for strangers against images of the classes, and the share of the test images that
limits at the 95 % quantile of the energies of other images accept. Prints the means over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import load_model
from ssl_toolkit.data.images.inputs import to_pixels
from ssl_toolkit.data.readers.listing import list_images
from ssl_toolkit.engine.checkpoints import load_checkpoint
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.training_images import to_unit
from ssl_toolkit.inference.model import Model
from ssl_toolkit.inference.reported import reported_algorithm
from ssl_toolkit.interfaces import ForwardOutput
from ssl_toolkit.interfaces.datasets import STRANGER
from ssl_toolkit.models.classifier import energy
from ssl_toolkit.runs.folder import RunFolder

ACCEPTED = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--strangers", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    own, _, flags = " ".join(sys.argv[1:]).partition(" -- ")  # argparse would read the flags too
    options = parser.parse_args(own.split())
    torch.set_num_threads(1)
    rows = []
    for seed in range(options.seeds):
        start, folder = time.monotonic(), RunFolder(options.output / f"seed-{seed}")
        data, strangers = _sets(options.data, options.strangers, options.output / "data", seed)
        measured = options.output / f"seed-{seed}.json"
        if measured.exists():
            rows.append(json.loads(measured.read_text()))
            continue
        if not folder.model.exists():
            paths = ["--data", str(data), "--seed", str(seed), "--output", str(folder.path)]
            command = [sys.executable, "-m", "ssl_toolkit", "run", *flags.split(), *paths]
            subprocess.run(command, check=True)
        seconds = {"seconds": round(time.monotonic() - start)}
        rows.append(measure(folder, strangers) | seconds)
        measured.write_text(json.dumps(rows[-1]) + "\n")
    means = {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
    print(json.dumps({key: round(value, 3) for key, value in means.items()}))


def _sets(data: Path, strangers: Path | None, out: Path, seed: int) -> tuple[Path, list[Path]]:
    """Return the folder to train on and the folders of strangers."""
    if strangers is not None:
        return data, [strangers]
    folders = sorted(path for path in data.iterdir() if path.is_dir())
    left_out = folders[seed::3]
    for folder in folders:
        link = out / str(seed) / folder.name
        link.parent.mkdir(parents=True, exist_ok=True)
        if folder not in left_out and not link.exists():
            link.symlink_to(folder.resolve())
    return out / str(seed), left_out


@torch.no_grad()
def measure(folder: RunFolder, strangers: list[Path]) -> dict[str, float]:
    """Return AUROCs, accepted shares and the accuracy of a finished run."""
    model = load_model(folder.path)
    experiment = prepare(folder.reopen())
    images = experiment.trainer.batches.images
    rows = {
        "labeled": images.labeled,
        "validation": experiment.trainer.validation[0],
        "pool": images.unlabeled[images.hidden != STRANGER],
        "test": experiment.test[0],
    }
    outputs = {part: _stored(model, experiment, indices) for part, indices in rows.items()}
    outputs["strangers"] = _files(model, strangers)
    labeled, labels = outputs["labeled"], images.labels.long()
    parts = {part: scores(one, labeled, labels) for part, one in outputs.items()}
    checkpoint = folder.best if folder.best.exists() else folder.last
    tensors = reported_algorithm(load_checkpoint(checkpoint))
    if "open_head.weight" in tensors:
        from ssl_toolkit_fixmatch.openmatch import outlier_scores

        for part, (features, logits) in outputs.items():
            open_logits = features @ tensors["open_head.weight"].T
            parts[part]["one-vs-all"] = outlier_scores(logits, open_logits)
    result: dict[str, float] = {}
    for part in ("pool", "test"):
        for name, values in parts[part].items():
            others = parts["strangers"][name]
            truth = np.repeat([0, 1], [len(values), len(others)])
            auroc = roc_auc_score(truth, torch.cat([values, others]).numpy())
            result[f"{part} {name}"] = round(float(auroc), 4)
    for part in ("validation", "pool", "labeled"):
        if len(parts[part]["energy"]):
            limit = np.quantile(parts[part]["energy"].numpy(), ACCEPTED, method="weibull")
            for of in ("test", "strangers"):
                share = (parts[of]["energy"].numpy() <= limit).mean()
                result[f"{of} accepted by {part}"] = round(float(share), 4)
    hits = outputs["test"].logits.argmax(dim=-1) == experiment.test[1]
    counts = {f"n {part}": len(one.logits) for part, one in outputs.items()}
    return result | {"accuracy": round(hits.double().mean().item(), 4)} | counts


def scores(output: ForwardOutput, labeled: ForwardOutput, labels: Tensor) -> dict[str, Tensor]:
    """Return scores (N,) by name, the larger, the less an image belongs to any class.

    Args:
        output: Features (N, D) and logits (N, C) of images.
        labeled: Those of the labeled images.
        labels: Their classes (n,).
    """
    center = labeled.features.mean(dim=0)
    x, known = (F.normalize(one.features - center, dim=-1) for one in (output, labeled))
    means = torch.stack([known[labels == label].mean(dim=0) for label in labels.unique()])
    to_means = x @ F.normalize(means, dim=-1).T
    return {
        "energy": energy(output.logits),
        "probability": 1 - output.logits.softmax(dim=-1).amax(dim=-1),
        "largest logit": -output.logits.amax(dim=-1),
        "nearest label": 1 - (x @ known.T).amax(dim=-1),
        "class mean": 1 - to_means.amax(dim=-1),
        "relative mean": to_means.mean(dim=-1) - to_means.amax(dim=-1),
    }


def _stored(model: Model, experiment: Experiment, indices: Tensor) -> ForwardOutput:
    inputs = experiment.trainer.batches.images.inputs
    return _forward(model, [inputs.gather(chunk) for chunk in torch.split(indices, 64)])


def _files(model: Model, folders: list[Path]) -> ForwardOutput:
    paths = list_images([str(folder) for folder in folders]).paths
    size, fit, form = model.image_size, model.fit, model.pixels
    pixels = [to_pixels(path, size, fit, form) for path in paths]
    images = to_unit(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2))
    return _forward(model, list(torch.split(images, 64)))


def _forward(model: Model, batches: list[Tensor]) -> ForwardOutput:
    network = model.predictor or model.classifier
    outputs = [network(batch) for batch in batches if len(batch)]
    if not outputs:
        width, classes = model.classifier.backbone.feature_dim, len(model.classes)
        return ForwardOutput(torch.empty(0, width), torch.empty(0, classes))
    return ForwardOutput(*(torch.cat(values) for values in zip(*outputs, strict=True)))


if __name__ == "__main__":
    main()
