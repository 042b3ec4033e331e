"""Classify image files, and iterate over the predictions or write a table."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.readers.listing import Listing, list_images
from ssl_toolkit.data.readers.rows import SEPARATOR
from ssl_toolkit.files import at_home, check_target
from ssl_toolkit.inference.model import Model, Scored, load_model
from ssl_toolkit.inference.prior import Adjustment, Prior, make_adjustment
from ssl_toolkit.inference.reject import Rejection, make_rejection
from ssl_toolkit.inference.run_inputs import inputs_of
from ssl_toolkit.tabular import TABLES, Row, plain, write_rows

_YES_OR_NO = {True: "yes", False: "no", None: ""}


@dataclass(frozen=True)
class ImagePrediction:
    """The class of an image, or the reason why it has none."""

    path: str
    """The file as passed; in a folder, the folder as passed joined with the relative path."""
    label: str | None
    """The most probable class, or the predicted classes joined by ``|`` under ``--task
    multilabel``; None for an unreadable or rejected image."""
    confidence: float | None
    """Its probability; None under ``--task multilabel``."""
    probabilities: NDArray[np.float32] | None
    """(C,) of each class, in the order of `Model.classes`."""
    error: str = ""
    """Reason why the image can't be read, else empty."""
    stranger: bool | None = None
    """True if the image is rejected; None if none are to be."""
    stranger_score: float | None = None
    """How little it belongs to any class, see `Model.stranger_scores`; None as `stranger`."""


def predict(
    model: Model | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    device: str = "auto",
    batch_size: int = 64,
    workers: int | None = None,
    prior: Prior | None = None,
    reject: float | None = None,
    reject_above: float | None = None,
) -> Iterator[ImagePrediction]:
    """Classify image files and all images in folders, in constant memory.

    For images that are not files, see `Model.predict`.

    Args:
        model: A model, or the folder of a run or of an exported model.
        images: Files and folders, or one of them.
        device: See `load_model`; ignored if `model` is a `Model`.
        batch_size: Images per forward pass; changes speed and memory, not the result.
        workers: Threads that decode images, 0 for none; None for one per processor, at most 8.
        prior: As for `Model.predict`; an estimate needs the probabilities of all images in memory.
            Rejected images are not adjusted, and do not count in an estimate.
        reject: Share in (0, 1] of the images of the classes that is accepted, True for 0.95; other
            images are rejected as strangers, images of no class. See `Model.stranger_limit`.
        reject_above: Limit of the stranger score, in place of `reject`.

    Returns:
        An iterator over the predictions, in the order of the images.

    Raises:
        DataError: A file or folder is not found, or there is no image.
        ModelError: As `load_model`; or the model can't reject images.
        ConfigError: `reject` or `reject_above` is out of range.
    """
    model, listing = open_inputs(model, images, device=device)
    rejection = make_rejection(model, reject, reject_above)
    return _classify(model, listing, batch_size, workers, _adjustment(model, prior), rejection)


class PredictionTable(NamedTuple):
    """A table of predictions that `predict_table` has written."""

    images: int
    """Number of images."""
    unreadable: int
    """Number of unreadable images; the column ``error`` has the reasons."""
    notes: list[str]
    """Messages about files that are not used, estimated class shares and rejected images."""


def predict_table(
    model: Model | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: Path | None = None,
    *,
    probabilities: bool = False,
    device: str = "auto",
    batch_size: int = 64,
    workers: int | None = None,
    prior: Prior | None = None,
    reject: float | None = None,
    reject_above: float | None = None,
) -> PredictionTable:
    """Classify image files, and write a row for each as soon as it is classified.

    The columns are ``path``, ``class``, ``confidence`` and ``error``; under ``--task multilabel``
    ``path``, ``classes`` joined by ``|``, ``error``, and the probability of each class. With
    `reject` or `reject_above`, ``stranger`` (yes or no) and ``stranger_score`` precede ``error``,
    and rejected images have neither class nor confidence.

    Args:
        model: As for `predict`.
        images: As for `predict`.
        output: Path to the table, .csv, .tsv or .jsonl; None prints CSV.
        probabilities: Add a column ``p_<class>`` for each class.
        device: As for `predict`.
        batch_size: As for `predict`.
        workers: As for `predict`.
        prior: As for `predict`.
        reject: As for `predict`.
        reject_above: As for `predict`.

    Raises:
        ConfigError: The output can't be written, or is one of the inputs.
        UserError: As `predict`.
        OSError: The output can't be written completely.
    """
    model, listing = open_inputs(model, images, output, TABLES, device)
    adjustment, unreadable = _adjustment(model, prior), 0
    rejection = make_rejection(model, reject, reject_above)
    several = model.task == "multilabel"
    probabilities = probabilities or several

    def rows() -> Iterator[Row]:
        nonlocal unreadable
        for image in _classify(model, listing, batch_size, workers, adjustment, rejection):
            unreadable += bool(image.error)
            cells: list[str | float | None] = [image.path, image.label or ""]
            if not several:
                cells.append(image.confidence)
            if rejection is not None:
                cells += [_YES_OR_NO[image.stranger], image.stranger_score]
            cells.append(image.error)
            values = image.probabilities
            each = [None] * len(model.classes) if values is None else map(plain, values)
            yield [*cells, *(each if probabilities else ())]

    columns = ["path", "classes"] if several else ["path", "class", "confidence"]
    columns += [] if rejection is None else ["stranger", "stranger_score"]
    columns.append("error")
    write_rows(output, columns + [f"p_{name}" for name in model.classes] * probabilities, rows())
    return PredictionTable(len(listing.names), unreadable, listing.notes)


def open_inputs(
    model: Model | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: Path | None = None,
    suffixes: Sequence[str] = (),
    device: str = "auto",
) -> tuple[Model, Listing]:
    """Find the images, check the output, and load the model if it is a path.

    Args:
        model: As for `predict`.
        images: As for `predict`.
        output: Path to the output file; None for none.
        suffixes: Allowed suffixes of the output.
        device: As for `predict`.

    Raises:
        UserError: As `predict` and `check_target`.
    """
    paths = [images] if isinstance(images, str | os.PathLike) else images
    listing = list_images([os.fspath(path) for path in paths])
    inputs = [] if isinstance(model, Model) else inputs_of(at_home(model))
    check_target(output, suffixes, [*listing.paths, *inputs])
    return (model if isinstance(model, Model) else load_model(model, device)), listing


def _adjustment(model: Model, prior: Prior | None) -> Adjustment | None:
    if prior is None:
        return None
    return make_adjustment(prior, model.folder, model.classes, model.task)


def _classify(
    model: Model,
    listing: Listing,
    batch_size: int,
    workers: int | None,
    adjustment: Adjustment | None = None,
    rejection: Rejection | None = None,
) -> Iterator[ImagePrediction]:
    scores: deque[float] = deque()  # an estimate reads all rows before it yields one

    def each() -> Iterator[NDArray[np.float32] | Scored | str]:
        for row in model.scored(listing.paths, batch_size=batch_size, workers=workers):
            if isinstance(row, str):
                yield row
                continue
            scores.append(row.stranger_score)
            stranger = rejection is not None and row.stranger_score > rejection.limit
            yield row if stranger else row.probabilities

    rows, rejected = each(), 0
    if adjustment is not None:
        rows = adjustment.stream(rows, listing.notes)
    for name, row in zip(listing.names, rows, strict=True):
        if isinstance(row, str):
            yield ImagePrediction(name, None, None, None, row)
            continue
        score = scores.popleft()
        strange: dict[str, Any] = {}
        if rejection is not None:
            strange = {"stranger": isinstance(row, Scored), "stranger_score": score}
        if isinstance(row, Scored):
            rejected += 1
            yield ImagePrediction(name, None, None, row.probabilities, **strange)
        elif model.task == "multilabel":
            names = [model.classes[label] for label in np.flatnonzero(model.has_classes(row))]
            yield ImagePrediction(name, SEPARATOR.join(names), None, row)
        else:
            best = int(row.argmax())
            yield ImagePrediction(name, model.classes[best], plain(row[best]), row, **strange)
    if rejection is not None:
        listing.notes.append(rejection.note(rejected, len(listing.names)))
