"""Choose the images of a pool that a person labels next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ssl_toolkit.config.images import Fit, Size
from ssl_toolkit.config.settings import OnBadImage
from ssl_toolkit.data.cache import Progress
from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers.folders import folders_are_classes
from ssl_toolkit.engine.devices import choose_device
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.inference.embed import DEFAULT_SIZE, embed_table, network_features
from ssl_toolkit.inference.evaluate import predict_rows
from ssl_toolkit.inference.model import Model, load_model
from ssl_toolkit.labeling.clusters import Floats, compact
from ssl_toolkit.labeling.pool import Pool, pool_of_data, pool_of_run
from ssl_toolkit.labeling.queue import Queued
from ssl_toolkit.labeling.selection import (
    NEED_LABELS,
    Choice,
    Method,
    by_badge,
    by_clusters,
    by_margin,
    by_random,
)
from ssl_toolkit.models.factory import own_image_size
from ssl_toolkit.models.probe import DEFAULT_STRENGTH, choose_strength, fit_logistic_regression
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.tabular import plain
from ssl_toolkit.text import display_path

BACKBONE = "tf_efficientnet_lite0"
"""Default backbone: its weights are installed with the toolkit."""
MOST_VALIDATED = 2000
"""Most labels up to which the strength of the probe is chosen by cross-validation."""


class NoImageLeft(DataError):
    """No image of a pool can be labeled next."""


@dataclass(frozen=True)
class Next:
    """The images to label next, as `choose_next` returns them."""

    images: list[Queued]
    """The most useful one first."""
    candidates: int
    """Number of images that could be chosen."""
    labeled: int
    """Number of images with a label."""
    classes: tuple[str, ...]
    """Classes known so far."""


@dataclass(frozen=True)
class Embedding:
    """Features and predictions that the methods use."""

    features: Floats
    """(n + m, D) features of the labeled images, then of the candidates."""
    x: Floats
    """(n + m, K) the compact ones."""
    probabilities: Floats | None
    """(m, C) of the candidates; None if nothing predicts them."""
    classes: tuple[str, ...]
    """C names."""


def choose_next(
    source: str | os.PathLike[str],
    *,
    budget: int,
    method: Method = "kmeans",
    labels: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    backbone: str = BACKBONE,
    weights: str | os.PathLike[str] | None = None,
    image_size: Size | None = None,
    fit: Fit = "crop",
    on_bad_image: OnBadImage = "error",
    seed: int = 0,
    device: str = "auto",
    batch_size: int = 64,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Next:
    """Choose the images of a pool that a person labels next.

    Images with a label, validation and test images, and duplicates are never chosen. The same
    arguments and data choose the same images on the same machine.

    Args:
        source: Data as for ``--data``, or a folder of images without labels; or the folder of a
            run, whose model then gives features and predictions.
        budget: Number of images; fewer are returned if there are fewer.
        method: ``kmeans``, ``typicality`` and ``random`` need no label; ``margin`` and ``badge``
            use the predictions of the run, or of a linear probe on the labels.
        labels: Path to a labels file: only its images have a label, and those with an empty one
            are skipped. None for the labels of the data or of the run.
        data: Path to the images of the run, if they were moved.
        root: Folder that the paths of a manifest are relative to.
        backbone: Pre-trained backbone of the features; not used for a run.
        weights: Path to its weights; None for the published ones.
        image_size: Side in pixels; None for the backbone's.
        fit: As for ``--fit``.
        on_bad_image: As for `embed`.
        seed: Seed of random choices and of k-means.
        device: As for `load_model`.
        batch_size: Images in a forward pass.
        workers: Threads that decode images; None for one per processor, at most 8.
        progress: Called while images are decoded.

    Raises:
        UserError: Data, run, labels or backbone can't be read, the method needs labels, or no
            image is left.
    """
    if budget < 1:
        raise ConfigError(f"--budget {budget}: choose at least 1 image")
    path = Path(source)
    file = None if labels is None else Path(labels)
    threads = min(os.cpu_count() or 1, 8) if workers is None else workers
    if RunFolder(path).summary.is_file():
        pool = pool_of_run(path, file, None if data is None else Path(data), progress)
        _check(pool, method, path, file, has_model=True)
        model = load_model(path, device)
        embedding = _by_model(model, pool, batch_size, progress)
    elif data is not None:
        raise ConfigError(f"--data is for a run, and {display_path(path)} is none; leave it out")
    else:
        size = image_size or own_image_size(backbone) or DEFAULT_SIZE
        base = None if root is None else Path(root)
        table = read_data(
            path,
            root=base,
            size=size,
            fit=fit,
            workers=threads,
            on_bad_image=on_bad_image,
            unlabeled=True,
            progress=progress,
        )
        pool = pool_of_data(table, file, base or (path if path.is_dir() else path.parent))
        _check(pool, method, path, file, has_model=False)
        features = pool.table.features
        if method == "random":
            return _result(pool, by_random(pool.keys(pool.candidates), budget, seed), method)
        if features is None:
            features = embed_table(
                pool.table,
                pool.rows,
                backbone=backbone,
                weights=weights,
                image_size=size,
                device=choose_device(device),
                batch_size=batch_size,
                progress=progress,
            )
        else:
            features = np.asarray(features[pool.rows], dtype=np.float32)
        embedding = by_probe(features, pool)
    pool, embedding = _without_equal(pool, embedding)
    return _result(pool, choose(pool, embedding, budget, method, seed), method, embedding)


def _check(pool: Pool, method: Method, path: Path, labels: Path | None, *, has_model: bool) -> None:
    """Raise if no image is left, or the method needs labels that are missing."""
    if not len(pool.candidates):
        hint = "" if labels else "; --labels FILE names the images that count as labeled"
        hint = folders_are_classes(path, pool.table) or hint
        raise NoImageLeft(
            f"{display_path(path)}: no image is left to label: {len(pool.labeled):,} have a label, "
            f"the others are test or validation images, skipped ones or duplicates{hint}"
        )
    if has_model or method not in NEED_LABELS:
        return
    count = len(np.unique(pool.labels))
    if count < 2:
        raise ConfigError(
            f"--method {method} needs labels of at least two classes, and there are "
            f"{len(pool.labeled)} labels of {count}: start with --method kmeans, or name the "
            "labels by --labels FILE"
        )


def _by_model(model: Model, pool: Pool, batch_size: int, progress: Progress | None) -> Embedding:
    """Return features and predictions of the model of a run."""
    if pool.table.features is not None:
        features = np.asarray(pool.table.features[pool.rows], dtype=np.float32)
    else:
        features = network_features(
            model.classifier,
            pool.table,
            pool.rows,
            model.image_size,
            model.device,
            batch_size,
            progress,
        )
    probabilities = predict_rows(model, pool.table, pool.candidates, batch_size)
    return Embedding(features, compact(features), probabilities, model.classes)


def by_probe(features: Floats, pool: Pool) -> Embedding:
    """Return features and, with labels of two classes, the predictions of a linear probe."""
    x, labels = compact(features), pool.labels
    present = np.unique(labels)
    if len(present) < 2:
        return Embedding(features, x, None, pool.classes)
    known = x[: len(labels)].astype(np.float64)
    few = len(labels) <= MOST_VALIDATED
    strength = choose_strength(known, labels).strength if few else DEFAULT_STRENGTH
    numbers = np.searchsorted(present, labels)
    weight, bias = fit_logistic_regression(known, numbers, strength, len(present))
    logits = x[len(labels) :] @ weight.T.astype(np.float32) + bias.astype(np.float32)
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logits)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    classes = tuple(pool.classes[label] for label in present.tolist())
    return Embedding(features, x, probabilities, classes)


def _without_equal(pool: Pool, embedding: Embedding) -> tuple[Pool, Embedding]:
    """Drop candidates whose features equal those of a labeled image or an earlier candidate."""
    features = np.ascontiguousarray(embedding.features)
    width = features.dtype.itemsize * features.shape[1]
    _, first = np.unique(features.view(f"V{width}")[:, 0], return_index=True)
    count = len(pool.labeled)
    keep = np.zeros(len(features), dtype=bool)
    keep[first], keep[:count] = True, True
    if keep.all():
        return pool, embedding
    kept = keep[count:]
    if embedding.probabilities is not None:
        embedding = replace(embedding, probabilities=embedding.probabilities[kept])
    pool = replace(pool, candidates=pool.candidates[kept])
    return pool, replace(embedding, features=features[keep], x=embedding.x[keep])


def choose(
    pool: Pool, embedding: Embedding, budget: int, method: Method, seed: int
) -> list[Choice]:
    """Return the candidates of a pool that a method chooses, at most `budget`.

    Args:
        pool: Labeled images and candidates.
        embedding: Their features, with predictions if the method needs labels.
        budget: Number of images.
        method: As for `choose_next`.
        seed: As for `choose_next`.
    """
    budget, count = min(budget, len(pool.candidates)), len(pool.labeled)
    generator = np.random.Generator(np.random.PCG64(seed))
    if method == "random":
        return by_random(pool.keys(pool.candidates), budget, seed)
    if method in ("kmeans", "typicality"):
        candidates, typical = np.arange(len(embedding.x)) >= count, method == "typicality"
        return by_clusters(embedding.x, candidates, budget, generator, typical=typical)
    assert embedding.probabilities is not None
    if method == "margin":
        return by_margin(embedding.probabilities, budget)
    return by_badge(embedding.x[count:], embedding.probabilities, budget, generator)


def _result(
    pool: Pool, choices: Sequence[Choice], method: Method, embedding: Embedding | None = None
) -> Next:
    probabilities = None if embedding is None else embedding.probabilities
    images = []
    for (index, score), key in zip(
        choices, pool.keys(pool.candidates[[choice.position for choice in choices]]), strict=True
    ):
        guess, confidence = "", None
        if embedding is not None and probabilities is not None:
            best = int(probabilities[index].argmax())
            guess, confidence = embedding.classes[best], plain(probabilities[index, best])
        score = None if score is None else plain(np.float32(score))
        images.append(Queued(key, score, guess, confidence, method))
    return Next(images, len(pool.candidates), len(pool.labeled), pool.classes)
