"""Draw splits of images with several classes each, stratified by their sets of classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.splits.draw import Rows, Split, identical_rows
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import summarize


def iterative_stratification(targets: NDArray[np.bool_], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Distribute images over subsets so that each has its share of every class.

    The images of the class with the fewest images left are distributed first, each to the subset
    that lacks most images of the class, then to the one that lacks most images. Subsets have
    exactly their sizes. Of equal subsets the first is taken, and images are taken in their order,
    where the paper draws at random: the caller orders them by hashes.

    Source: Sechidis, Tsoumakas and Vlahavas, On the Stratification of Multi-label Data, ECML PKDD
    2011, algorithm 1.

    Args:
        targets: (N, C) True for the classes of each image.
        sizes: Numbers of images per subset, with the sum N.

    Returns:
        (N,) index of the subset of each image.
    """
    subset = np.full(len(targets), -1, dtype=np.int64)
    room = np.array(sizes, dtype=np.int64)
    lacking = np.outer(room / max(len(targets), 1), targets.sum(axis=0))
    left = targets.sum(axis=0)
    while left.any():
        label = int(np.where(left > 0, left, len(targets) + 1).argmin())
        for image in np.flatnonzero(targets[:, label] & (subset < 0)).tolist():
            wanted = np.where(room > 0, lacking[:, label], -np.inf)
            best = np.flatnonzero(np.isclose(wanted, wanted.max()))
            chosen = int(best[room[best].argmax()])
            subset[image] = chosen
            room[chosen] -= 1
            lacking[chosen] -= targets[image]
            left -= targets[image]
    for image in np.flatnonzero(subset < 0).tolist():
        subset[image] = chosen = int(room.argmax())
        room[chosen] -= 1
    return subset


def draw_multilabel_split(
    table: ImageTable,
    *,
    seed: int,
    labels_per_class: int | None = None,
    num_labels: int | None = None,
    val_fraction: float = 0.0,
    test_fraction: float = 0.0,
    labeled_in_pool: bool | None = None,
    chosen: Rows | None = None,
) -> Split:
    """Draw a split as `draw_split`, stratified by `iterative_stratification`.

    Args:
        table: The images, with `ImageTable.label_sets`.
        seed: Seed of the run, the only source of randomness.
        labels_per_class: Least number of labeled images that have each class; None for all images
            with a label.
        num_labels: Number of labeled images; mutually exclusive with `labels_per_class`.
        val_fraction: Fraction of the images with a label that are not test, in [0, 1).
        test_fraction: Fraction of the pool's images with a label, in [0, 1).
        labeled_in_pool: As for `draw_split`.
        chosen: As for `draw_split`.

    Raises:
        DataError: Too few images, or a fraction for a part that the table has.
    """
    _check(table, labels_per_class, num_labels, val_fraction, test_fraction)
    pool, test, validation = (_part(table, part) for part in ("pool", "test", "validation"))
    if test_fraction > 0:
        rest = pool if chosen is None else np.setdiff1d(pool, chosen)
        if len(rest) == 0:
            raise DataError(
                "--test-fraction: every image with a label is in --labels; leave it out"
            )
        size = min(_share(test_fraction, len(pool)), len(rest))
        test = _stratified(table, rest, size, f"test/{seed}")
    candidates = np.setdiff1d(np.concatenate([_part(table, "labeled"), pool]), test)
    every = labels_per_class is None and num_labels is None and chosen is None
    labeled = candidates if chosen is None else np.unique(chosen)
    if labels_per_class is not None:
        labeled = _at_least(table, candidates, labels_per_class, f"labeled/{seed}")
    elif num_labels is not None:
        if not 0 < num_labels <= len(candidates):
            raise DataError(
                f"--num-labels must be between 1 and {len(candidates)}, the images with a label; "
                f"got {num_labels}"
            )
        labeled = _stratified(table, candidates, num_labels, f"labeled/{seed}")
    if val_fraction > 0:
        source = labeled if every else np.setdiff1d(candidates, labeled)
        size = min(_share(val_fraction, len(candidates)), len(source) - every)
        validation = _stratified(table, source, max(size, 0), f"validation/{seed}")
        labeled = np.setdiff1d(labeled, validation)
    counts = table.class_counts(labeled)
    if empty := _names(table, counts == 0):
        raise DataError(
            [
                f"class {name!r} has no labeled image; add some, or give a larger --num-labels or "
                "--labels-per-class"
                for name in empty
            ]
        )
    used = np.concatenate([test, validation, *([] if labeled_in_pool is True else [labeled])])
    unlabeled = np.concatenate([np.setdiff1d(pool, used), _part(table, "unlabeled")])
    warnings = []
    if val_fraction > 0 and len(validation) == 0:
        warnings.append("no validation images: all images with a label are labeled ones")
    if labeled_in_pool is False:
        known = np.concatenate([labeled, validation])
        unlabeled = np.setdiff1d(unlabeled, identical_rows(table, unlabeled, known))
    if single := _names(table, counts == 1):
        warnings.append(f"only one labeled image for {len(single)} classes: {summarize(single)}")
    for part, rows in (("validation", validation), ("test", test)):
        if len(rows) and (without := _names(table, table.class_counts(rows) == 0)):
            warnings.append(f"no {part} image has class {summarize(without)}")
    if len(test) == 0:
        warnings.append("no test images: there will be no test result (--test-fraction sets some)")
    described = [f"{n} {c}" for n, c in zip(table.classes, counts.tolist(), strict=True)]
    note = f"{len(labeled)} labeled images; by class: {summarize(described, 20)}"
    return Split(labeled, unlabeled, validation, test, (note,), tuple(warnings))


def _at_least(table: ImageTable, rows: Rows, number: int, purpose: str) -> Rows:
    """Return images so that each class has `number`; the rarest classes choose first."""
    rows = _hashed(table, rows, purpose)
    targets = table.targets(rows) > 0
    totals = targets.sum(axis=0)
    short = [
        f"class {table.classes[label]!r} has {totals[label]} of the {number} labeled images "
        "requested; lower --labels-per-class, or add images"
        for label in np.flatnonzero(totals < number).tolist()
    ]
    if short:
        raise DataError(short)
    chosen = np.zeros(len(rows), dtype=np.bool_)
    for label in np.argsort(totals, kind="stable").tolist():
        missing = number - int(targets[chosen, label].sum())
        chosen[np.flatnonzero(targets[:, label] & ~chosen)[: max(missing, 0)]] = True
    return np.sort(rows[chosen])


def _stratified(table: ImageTable, rows: Rows, size: int, purpose: str) -> Rows:
    rows = _hashed(table, rows, purpose)
    subset = iterative_stratification(table.targets(rows) > 0, (size, len(rows) - size))
    return np.sort(rows[subset == 0])


def _hashed(table: ImageTable, rows: Rows, purpose: str) -> Rows:
    """Return the rows in the order of SHA-256(purpose, key)."""

    def rank(row: int) -> bytes:
        return hashlib.sha256(f"{purpose}\0{table.keys[row]}".encode()).digest()

    return np.array(sorted(rows.tolist(), key=rank), dtype=np.int64)


def _check(
    table: ImageTable,
    labels_per_class: int | None,
    num_labels: int | None,
    val_fraction: float,
    test_fraction: float,
) -> None:
    if labels_per_class is not None and num_labels is not None:
        raise DataError("--labels-per-class and --num-labels can't be used together")
    for flag, fraction, part in (
        ("--val-fraction", val_fraction, "validation"),
        ("--test-fraction", test_fraction, "test"),
    ):
        if fraction > 0 and len(_part(table, part)):
            raise DataError(f"the data has a {part} split of its own; leave {flag} out")
    if test_fraction > 0 and len(_part(table, "pool")) < 2:
        raise DataError("--test-fraction draws from a pool of images, and this data has none")


def _share(fraction: float, size: int) -> int:
    """Return a share to the nearest whole image, at least 1 and leaving 1."""
    return min(max(1, int(fraction * size + 0.5)), size - 1)


def _names(table: ImageTable, mask: NDArray[np.bool_]) -> list[str]:
    return [table.classes[label] for label in np.flatnonzero(mask).tolist()]


def _part(table: ImageTable, part: str) -> Rows:
    return np.flatnonzero(table.splits == part).astype(np.int64)
