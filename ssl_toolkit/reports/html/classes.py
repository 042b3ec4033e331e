"""The report's classes and images: confusion, accuracy of each class, the worst mistakes."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ssl_toolkit.comparisons.schema import Comparison
from ssl_toolkit.errors import ModelError
from ssl_toolkit.reports.text_table import NOTHING, TextTable, share
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.predictions import read_arrays
from ssl_toolkit.runs.scoring import confusion_matrix

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

    name: str
    pixels: NDArray[np.uint8]
    true: str
    predicted: str
    probability: float
    """Of the predicted class."""
    seed: int

    @property
    def confidence(self) -> str:
        """The probability as text."""
        return share(self.probability)

    @property
    def tiny(self) -> bool:
        """True if it is enlarged."""
        return bool(max(self.pixels.shape[:2]) <= _TINY)

    @property
    def source(self) -> str:
        """The image as a data URI; JPEG if PNG would be several times as large."""
        image = Image.fromarray(self.pixels)
        image.thumbnail((_LARGEST, _LARGEST))
        file = io.BytesIO()
        kind = "png" if self.tiny else "jpeg"
        image.save(file, kind, **({"optimize": True} if self.tiny else {"quality": 85}))
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


@dataclass(frozen=True)
class Predicted:
    """The test predictions of a row, summed over its seeds."""

    row: str
    matrix: NDArray[np.int64]
    """(C, C) counts; true classes are rows."""
    runs: int
    mistakes: tuple[Mistake, ...]

    @property
    def shares(self) -> NDArray[np.float64]:
        """The counts over those of the true class."""
        totals = np.maximum(self.matrix.sum(axis=1, keepdims=True), 1)
        shares: NDArray[np.float64] = self.matrix / totals
        return shares

    def cells(self) -> list[list[tuple[str, int]]]:
        """Return the matrix as text, empty for 0, with the shares in tenths, rounded up."""
        levels = np.ceil(self.shares * _LEVELS).astype(int).tolist()
        return [
            [(f"{count:,}" if count else "", level) for count, level in zip(*pair, strict=True)]
            for pair in zip(self.matrix.tolist(), levels, strict=True)
        ]


def class_results(comparison: Comparison) -> dict[str, Any]:
    """Return what the page shows of classes and mistakes, by the names in its template."""
    if (precisions := precision_table(comparison)) is not None:
        return {
            "classes": [row[0] for row in precisions.rows],
            "per_class": precisions,
            **dict.fromkeys(("matrices", "pairs", "unpredicted", "mistakes"), ()),
            "score": "average precision",
            "shows_mistakes": False,
        }
    classes, predictions = read_predictions(comparison)
    few = len(classes) <= MOST_IN_MATRIX
    names = {of_row.row for of_row in predictions}
    return {
        "classes": classes,
        "matrices": predictions if few else [],
        "pairs": [] if few else [(p.row, confused_pairs(p, classes)) for p in predictions],
        "per_class": class_table(predictions, classes) if predictions else None,
        "unpredicted": [row.name for row in comparison.rows if row.name not in names],
        "mistakes": [(p.row, p.mistakes) for p in predictions if p.mistakes],
        "score": "accuracy",
        "shows_mistakes": True,
    }


def precision_table(comparison: Comparison) -> TextTable | None:
    """Return the mean average precision over seeds by class and row; None for other tasks."""
    columns: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, int] = {}
    for run in comparison.runs:
        several = run.summary and run.summary.multilabel
        if not (run.completed and several and several.test):
            continue
        column = columns.setdefault(run.row, {})
        for name, score in several.test.per_class.items():
            counts.setdefault(name, score.count)
            if score.average_precision is not None:
                column.setdefault(name, []).append(score.average_precision)
    if not columns:
        return None
    cells = [
        [
            name,
            f"{count:,}",
            *(share(fmean(c[name])) if name in c else NOTHING for c in columns.values()),
        ]
        for name, count in counts.items()
    ]
    return TextTable(("class", "test images", *columns), cells)


def read_predictions(comparison: Comparison) -> tuple[tuple[str, ...], list[Predicted]]:
    """Read each run's predictions once.

    Returns:
        The classes, and the predictions of each row whose completed runs have readable ones of
        the same classes.
    """
    classes: tuple[str, ...] = ()
    predictions = []
    most = max(4, min(_IMAGES_OF_ROW, _IMAGES // len(comparison.rows)))
    for row in comparison.rows:
        matrices, mistakes = [], list[Mistake]()
        for run in row.completed_runs:
            try:
                arrays = read_arrays(RunFolder(run.folder).predictions)
            except ModelError:
                continue
            if not len(arrays["test_labels"]) or arrays["test_labels"].ndim == 2:
                continue
            names = tuple(str(name) for name in arrays["classes"])
            classes = classes or names
            if names != classes:
                continue
            matrices.append(confusion_matrix(arrays["test_probabilities"], arrays["test_labels"]))
            mistakes += _mistakes(arrays, classes, run.seed)
        if not matrices:
            continue
        worst = sorted(mistakes, key=lambda mistake: -mistake.probability)
        # An image that several seeds get wrong is shown once, as the most confident one.
        distinct = {mistake.name: mistake for mistake in reversed(worst)}
        shown = [mistake for mistake in worst if distinct[mistake.name] is mistake][:most]
        matrix = np.sum(matrices, axis=0)
        predictions.append(Predicted(row.name, matrix, len(matrices), tuple(shown)))
    return classes, predictions


def confused_pairs(predicted: Predicted, classes: Sequence[str]) -> TextTable:
    """Return the pairs of classes that a row confuses most."""
    errors = predicted.matrix.copy()
    np.fill_diagonal(errors, 0)
    order = np.argsort(-errors, axis=None, kind="stable")[:_PAIRS]
    pairs = [divmod(int(index), len(classes)) for index in order]
    cells = [
        [classes[a], classes[b], f"{errors[a, b]:,}", share(float(predicted.shares[a, b]))]
        for a, b in pairs
        if errors[a, b]
    ]
    return TextTable(("true class", "predicted class", "images", "share of its class"), cells)


def class_table(predictions: Sequence[Predicted], classes: Sequence[str]) -> TextTable:
    """Return accuracies by class and row; beyond `MOST_IN_MATRIX` classes, the worst first."""
    counts = np.stack([of_row.matrix.sum(axis=1) for of_row in predictions])
    accuracies = np.stack([np.diag(of_row.shares) for of_row in predictions])
    order = list(range(len(classes)))
    if len(classes) > MOST_IN_MATRIX:
        means = np.where(counts.max(axis=0) > 0, accuracies.mean(axis=0), 2)
        order = np.argsort(means, kind="stable").tolist()
    cells = [
        [
            classes[k],
            f"{counts[0, k] // predictions[0].runs:,}",
            *(
                share(float(accuracy[k])) if count[k] else NOTHING
                for count, accuracy in zip(counts, accuracies, strict=True)
            ),
        ]
        for k in order
    ]
    heads = ("class", "test images", *(of_row.row for of_row in predictions))
    return TextTable(heads, cells)


def pseudo_label_table(comparison: Comparison) -> TextTable | None:
    """Return the share of each class among the labels and among each row's pseudo labels.

    None if no run recorded them.
    """
    labeled: Counter[str] = Counter()
    columns: dict[str, Counter[str]] = {}
    for run in comparison.runs:
        health = run.summary and run.summary.health
        if run.completed and health and health.pseudo_labels:
            labeled.update(health.labeled)
            columns.setdefault(run.row, Counter()).update(health.pseudo_labels)
    if not columns:
        return None
    counters = [labeled, *columns.values()]
    classes = dict.fromkeys(name for counter in counters for name in counter)
    cells = [
        [name, *(share(c[name] / max(c.total(), 1)) if name in c else NOTHING for c in counters)]
        for name in classes
    ]
    return TextTable(("class", "labeled", *columns), cells)


def _mistakes(
    arrays: Mapping[str, NDArray[Any]], classes: Sequence[str], seed: int
) -> Iterator[Mistake]:
    if "mistakes_images" not in arrays:
        return
    rows, names, images = (arrays[f"mistakes{part}"] for part in ("", "_keys", "_images"))
    for row, name, pixels in zip(rows, names, images, strict=True):
        probabilities, label = arrays["test_probabilities"][row], arrays["test_labels"][row]
        predicted = int(probabilities.argmax())
        probability = float(probabilities[predicted])
        yield Mistake(str(name), pixels, classes[label], classes[predicted], probability, seed)
