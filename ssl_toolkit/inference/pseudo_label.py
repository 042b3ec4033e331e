"""Pseudo-label a pool of images, and list the most uncertain ones."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.class_names import class_name, class_of, guarded, name_fault
from ssl_toolkit.data.readers.listing import Listing
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import at_home
from ssl_toolkit.inference.model import Model
from ssl_toolkit.inference.predict import open_inputs
from ssl_toolkit.inference.reject import make_rejection
from ssl_toolkit.tabular import Row, plain, write_rows
from ssl_toolkit.text import display_path, display_text, summarize

MANIFEST: tuple[str, ...] = ("path", "label", "split", "confidence")
"""Columns of a manifest of pseudo labels."""

UNCERTAIN = ("path", "class", "confidence", "second", "margin")
"""Columns of a list of `UncertainImage`."""


class UncertainImage(NamedTuple):
    """An image of a pool, with its two most probable classes."""

    path: str
    """The file as passed."""
    label: str
    """The most probable class; ties go to the first class."""
    confidence: float
    """Its probability."""
    second: str
    """The second most probable class."""
    margin: float
    """Probability of the most probable class minus that of the second.

    Source: Scheffer, Decomain and Wrobel, Active Hidden Markov Models, IDA 2001, section 4.
    """


@dataclass(frozen=True)
class PseudoLabeling:
    """Pseudo labels of a pool of N images, as `pseudo_label` returns them."""

    paths: tuple[str, ...]
    """(N,) as in the manifest: relative to it if it contains the pool, otherwise absolute."""
    labels: tuple[str | None, ...]
    """(N,) a class; None below the threshold, and for a rejected image."""
    confidences: tuple[float, ...]
    """(N,) the probability of the most probable class."""
    root: str
    """The ``root`` that training on the manifest needs; empty for none."""
    unreadable: tuple[str, ...] = ()
    """The unreadable images, each with the reason."""
    uncertain: tuple[UncertainImage, ...] = ()
    """The most uncertain images, if requested, in ascending order of margin."""
    notes: tuple[str, ...] = ()
    """The number of rejected images, in words."""

    def rows(self) -> list[Row]:
        """Return the rows of the manifest, with one value per column.

        The split is ``labeled`` or ``unlabeled``, so that training does not draw other labels.
        """
        columns = zip(self.paths, self.labels, self.confidences, strict=True)
        return [
            [path, label or "", "unlabeled" if label is None else "labeled", confidence]
            for path, label, confidence in columns
        ]


def pseudo_label(
    model: Model | str | os.PathLike[str],
    pool: str | os.PathLike[str],
    *,
    threshold: float = 0.95,
    output: str | os.PathLike[str] | None = None,
    uncertain: int = 0,
    device: str = "auto",
    batch_size: int = 64,
    workers: int | None = None,
    reject: float | None = None,
    reject_above: float | None = None,
) -> PseudoLabeling:
    """Label the images of a folder on which a model is confident.

    Args:
        model: A model, or the folder of a run or of an exported model.
        pool: Folder of images.
        threshold: Minimum probability of a pseudo label, in [0, 1].
        output: Path to the manifest to write, .csv, .tsv or .jsonl, for ``data`` of a
            configuration; images below the threshold have no label in it.
        uncertain: Number of most uncertain images to return, to label next.
        device: See `load_model`; ignored if `model` is a `Model`.
        batch_size: Images per forward pass; changes speed and memory, not the result.
        workers: As for `Model.predict`.
        reject: As for `predict`; rejected images get no label, and are not listed as uncertain.
        reject_above: As for `predict`.

    Raises:
        DataError: The pool is not found or has no image, or a name can't be in a manifest.
        ModelError: As `load_model`, or a model of ``--task multilabel``; or the model can't reject
            images.
        ConfigError: The output can't be written, or is one of the inputs.
    """
    target = None if output is None else at_home(output)
    loaded, listing = open_inputs(model, pool, target, (".csv", ".tsv", ".jsonl"), device)
    loaded.require_one_class("pseudo-label")
    if target is not None or not uncertain:
        check_names(loaded.classes, listing)
    rejection = make_rejection(loaded, reject, reject_above)
    limit = math.inf if rejection is None else rejection.limit
    folder = None if target is None else target.absolute().parent
    files, images, strange, unreadable = [], [], [], []
    rows = loaded.scored(listing.paths, batch_size=batch_size, workers=workers)
    for name, file, row in zip(listing.names, listing.paths, rows, strict=True):
        if isinstance(row, str):
            unreadable.append(f"{name}: {row}")
        else:
            files.append(file)
            images.append(uncertain_image(name, row.probabilities, loaded.classes))
            strange.append(row.stranger_score > limit)
    labeling = label_pool(files, images, threshold, folder)
    if rejection is not None:
        pairs = zip(labeling.labels, strange, strict=True)
        labels = tuple(None if stranger else label for label, stranger in pairs)
        notes = (rejection.note(sum(strange), len(images)),)
        labeling = replace(labeling, labels=labels, notes=notes)
    if target is not None:
        write_rows(target, MANIFEST, labeling.rows())
    # Sorting is stable: images of equal margin stay in their order.
    known = [image for image, stranger in zip(images, strange, strict=True) if not stranger]
    by_margin = sorted(known, key=lambda image: image.margin)[:uncertain]
    return replace(labeling, unreadable=tuple(unreadable), uncertain=tuple(by_margin))


def check_names(classes: Sequence[str], listing: Listing) -> None:
    """Raise if names in a manifest would not read back the same.

    Args:
        classes: Class names of the model.
        listing: Images of the pool.

    Raises:
        DataError: Names the classes and files whose names a table can't contain.
    """
    faults = [
        f"the class {name!r} can't be written so that it reads back the same; rename it"
        for name in classes
        if name_fault(name) or class_name(class_of(guarded(name, as_label=True))) != name
    ]
    odd = [display_path(path) for path in listing.paths if not _is_utf8(path)]
    if odd:
        faults.append(f"names that are not UTF-8, which no manifest can hold: {summarize(odd)}")
    if faults:
        raise DataError([f"pseudo-label: {fault}" for fault in faults])


def _is_utf8(path: Path) -> bool:
    return display_text(str(path)).encode() == os.fsencode(path)


def root_of(paths: Sequence[str]) -> str:
    """Return the ``--root`` that reads a manifest with these paths; empty if none is needed."""
    if not paths or not os.path.isabs(paths[0]):
        return ""
    return os.path.commonpath([os.path.dirname(path) for path in paths])


def uncertain_image(
    path: str, probs: NDArray[np.float32], classes: Sequence[str]
) -> UncertainImage:
    """Return the two most probable classes of an image from its (C,) probabilities."""
    best, second = np.argsort(-probs, kind="stable")[:2].tolist()
    margin = plain(probs[best] - probs[second])
    return UncertainImage(path, classes[best], plain(probs[best]), classes[second], margin)


def label_pool(
    files: Sequence[Path], images: Sequence[UncertainImage], threshold: float, folder: Path | None
) -> PseudoLabeling:
    """Pseudo-label the images whose confidence reaches the threshold.

    Source: Lee, Pseudo-Label, ICML workshop 2013, with the fixed threshold of FixMatch (eq. 4).

    Args:
        files: N paths.
        images: N predictions.
        threshold: Minimum probability of a pseudo label, in [0, 1].
        folder: Folder of the manifest. Paths are relative to it if it contains the whole pool,
            also with links resolved; otherwise, or if it is None, they are absolute.
    """
    paths = tuple(map(display_text, _paths(files, folder)))
    return PseudoLabeling(
        paths=paths,
        labels=tuple(image.label if image.confidence >= threshold else None for image in images),
        confidences=tuple(image.confidence for image in images),
        root=root_of(paths),
    )


def _paths(files: Sequence[Path], folder: Path | None) -> list[str]:
    """Return the paths for a manifest, all inside its root."""
    paths = [os.path.abspath(path) for path in files]
    real = [os.path.realpath(path) for path in paths]
    if folder is not None:
        base = os.path.abspath(folder)
        if _all_in(base, paths) and _all_in(os.path.realpath(base), real):
            return [os.path.relpath(path, base) for path in paths]
    inside = _all_in(os.path.realpath(root_of(paths)), real)
    return paths if inside else real  # links that leave the folder are written as their targets


def _all_in(folder: str, paths: Sequence[str]) -> bool:
    base = os.path.join(folder, "")
    return all(path.startswith(base) for path in paths)
