"""The report's images and classes: confusion, accuracy of each class, the worst mistakes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit.comparisons.types import Comparison, Variant
from ssl_toolkit.engine.metrics import confusion_matrix
from ssl_toolkit.errors import ModelError
from ssl_toolkit.reports.html.scores import Table
from ssl_toolkit.reports.summary_table import NOTHING, share
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.predictions import read_arrays

MOST_IN_MATRIX = 30
"""Classes up to which a confusion matrix is shown; beyond, the most confused pairs."""

_PAIRS = 15
_IMAGES_OF_ROW, _IMAGES = 12, 96
_LARGEST = 128
_TINY = 48
_LEVELS = 10


@dataclass(frozen=True)
class Mistake:
    """A wrongly classified test image."""

    source: str
    """A data URI."""
    tiny: bool
    """True if it is enlarged."""
    true: str
    predicted: str
    confidence: str
    name: str
    seed: int


@dataclass(frozen=True)
class Predicted:
    """The predictions of a row for the test images, summed over its seeds."""

    matrix: NDArray[np.int64]
    """(C, C) counts; true classes are rows."""
    runs: int
    mistakes: tuple[Mistake, ...]


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix as cells: a count, empty for 0, and its share of the row in tenths."""

    row: str
    runs: int
    cells: Sequence[tuple[str, Sequence[tuple[str, int]]]]
    """For each true class its name and its cells."""


@dataclass(frozen=True)
class Pairs:
    """The most frequent confusions of a row."""

    row: str
    table: Table


def read_predictions(comparison: Comparison) -> tuple[tuple[str, ...], list[Predicted | None]]:
    """Read each run's predictions once.

    Returns:
        The classes; for each row what its completed runs predicted, None where no run has
        predictions of the same classes that can be read.
    """
    classes: tuple[str, ...] = ()
    rows: list[Predicted | None] = []
    most = max(4, min(_IMAGES_OF_ROW, _IMAGES // len(comparison.rows)))
    for row in comparison.rows:
        matrices, mistakes = [], []
        for member in row.runs:
            arrays = _arrays(RunFolder(member.folder).predictions) if member.completed else None
            if arrays is None:
                continue
            own = tuple(str(name) for name in arrays["classes"])
            classes = classes or own
            if own != classes:
                continue
            matrices.append(confusion_matrix(arrays["test_probabilities"], arrays["test_labels"]))
            mistakes += _mistakes(arrays, member.seed)
        if not matrices:
            rows.append(None)
            continue
        worst = sorted(mistakes, key=lambda found: -found[0])
        # An image that several seeds get wrong is shown once, as the most confident one.
        first = {name: found for _, name, found in reversed(worst)}
        kept = [found for _, name, found in worst if first[name] is found][:most]
        shown = tuple(_shown(arrays, place, classes, seed) for arrays, place, seed in kept)
        rows.append(Predicted(np.sum(matrices, axis=0), len(matrices), shown))
    return classes, rows


def matrices(
    rows: Sequence[Variant], classes: Sequence[str], found: Sequence[Predicted | None]
) -> list[Matrix]:
    """The confusion matrix of each row that has predictions."""
    tables = []
    for row, own in zip(rows, found, strict=True):
        if own is None:
            continue
        shares = own.matrix / np.maximum(own.matrix.sum(axis=1, keepdims=True), 1)
        levels = np.ceil(shares * _LEVELS).astype(int)
        cells = [
            (
                name,
                [
                    (f"{count:,}" if count else "", int(level))
                    for count, level in zip(own.matrix[k], levels[k], strict=True)
                ],
            )
            for k, name in enumerate(classes)
        ]
        tables.append(Matrix(row.name, own.runs, cells))
    return tables


def confused_pairs(
    rows: Sequence[Variant], classes: Sequence[str], found: Sequence[Predicted | None]
) -> list[Pairs]:
    """For each row that has predictions the pairs of classes that it confuses most."""
    tables = []
    for row, own in zip(rows, found, strict=True):
        if own is None:
            continue
        off = own.matrix.copy()
        np.fill_diagonal(off, 0)
        shares = off / np.maximum(own.matrix.sum(axis=1, keepdims=True), 1)
        order = np.argsort(-off, axis=None, kind="stable")[:_PAIRS]
        pairs = [divmod(int(place), len(classes)) for place in order]
        cells = [
            [classes[a], classes[b], f"{off[a, b]:,}", share(float(shares[a, b]))]
            for a, b in pairs
            if off[a, b]
        ]
        heads = ("true class", "predicted class", "images", "share of its class")
        tables.append(Pairs(row.name, Table(heads, cells)))
    return tables


def class_table(
    rows: Sequence[Variant], classes: Sequence[str], found: Sequence[Predicted | None]
) -> Table:
    """Accuracy of each class and row; beyond `MOST_IN_MATRIX` classes, the worst first."""
    there = [(row, own) for row, own in zip(rows, found, strict=True) if own is not None]
    counts = np.stack([own.matrix.sum(axis=1) for _, own in there])
    hits = np.stack([np.diag(own.matrix) for _, own in there])
    shares = hits / np.maximum(counts, 1)
    order = list(range(len(classes)))
    if len(classes) > MOST_IN_MATRIX:
        means = np.where(counts.max(axis=0) > 0, shares.mean(axis=0), 2)
        order = np.argsort(means, kind="stable").tolist()
    cells = [
        [
            classes[k],
            f"{counts[0, k] // there[0][1].runs:,}",
            *(share(float(shares[j, k])) if counts[j, k] else NOTHING for j in range(len(there))),
        ]
        for k in order
    ]
    return Table(("class", "test images", *(row.name for row, _ in there)), cells)


def pseudo_label_table(comparison: Comparison) -> Table | None:
    """Share of each class among the labels and among each row's pseudo labels.

    None where no run recorded them.
    """
    labeled: dict[str, float] = {}
    columns: dict[str, dict[str, float]] = {}
    for row in comparison.rows:
        for member in row.runs:
            health = member.summary and member.summary.health
            if not member.completed or not health or not health.pseudo_labels:
                continue
            _add(labeled, health.labeled)
            _add(columns.setdefault(row.name, {}), health.pseudo_labels)
    if not columns:
        return None
    classes = dict.fromkeys([*labeled, *(name for own in columns.values() for name in own)])
    shares = [_shares(labeled), *map(_shares, columns.values())]
    cells = [[name, *(own.get(name, NOTHING) for own in shares)] for name in classes]
    return Table(("class", "labeled", *columns), cells)


Found = tuple[float, str, tuple[Mapping[str, Any], int, int]]
"""Confidence, name, and where the image is: arrays, place among the kept ones, seed."""


def _mistakes(arrays: Mapping[str, Any], seed: int) -> list[Found]:
    if "mistakes_images" not in arrays:
        return []
    confidence = arrays["test_probabilities"][arrays["mistakes"]].max(axis=1)
    return [
        (float(value), str(arrays["mistakes_keys"][place]), (arrays, place, seed))
        for place, value in enumerate(confidence)
    ]


def _shown(arrays: Mapping[str, Any], place: int, classes: Sequence[str], seed: int) -> Mistake:
    index = int(arrays["mistakes"][place])
    probabilities = arrays["test_probabilities"][index]
    source, tiny = _data_uri(arrays["mistakes_images"][place])
    return Mistake(
        source,
        tiny,
        classes[int(arrays["test_labels"][index])],
        classes[int(probabilities.argmax())],
        share(float(probabilities.max())),
        str(arrays["mistakes_keys"][place]),
        seed,
    )


def _data_uri(pixels: NDArray[np.uint8]) -> tuple[str, bool]:
    """An image of at most 128 px a side; JPEG where PNG would cost several times as much."""
    image = Image.fromarray(pixels)
    tiny = max(image.size) <= _TINY
    image.thumbnail((_LARGEST, _LARGEST))
    file = io.BytesIO()
    kind = "png" if tiny else "jpeg"
    image.save(file, kind, **({"optimize": True} if tiny else {"quality": 85}))
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}", tiny


def _arrays(path: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays about the test part; None where they are missing, damaged or empty."""
    wanted = ("classes", "test_probabilities", "test_labels")
    more = ("mistakes", "mistakes_images", "mistakes_keys")
    try:
        found = read_arrays(path)
    except ModelError:
        return None
    arrays = {name: found[name] for name in (*wanted, *more) if name in found}
    whole = all(name in arrays for name in wanted) and len(arrays["test_labels"])
    return arrays if whole else None


def _add(total: dict[str, float], counts: Mapping[str, float]) -> None:
    for name, count in counts.items():
        total[name] = total.get(name, 0) + count


def _shares(counts: Mapping[str, float]) -> dict[str, str]:
    total = sum(counts.values())
    return {name: share(count / total) if total else NOTHING for name, count in counts.items()}
