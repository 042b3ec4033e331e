"""Draw the labeled, unlabeled, validation and test images of a split.

Randomness comes from hashes only: the images of each class are sorted by SHA-256(purpose, seed,
key), and the first ones are selected. The selection is therefore the same on every machine and with
every version of every library, and adding or removing an image doesn't affect the order of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.sections import ImbalanceSettings
from ssl_toolkit.data.splits.imbalance import described, label_tail, pool_tail, ratio_text
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import summarize

Rows = NDArray[np.int64]

RARE = 10
"""A class with at most a tenth of the labels of the largest one is reported as rare."""


@dataclass(frozen=True)
class Split:
    """Rows of an `ImageTable` in each part, as int64 arrays whose order matters."""

    labeled: Rows
    unlabeled: Rows
    """May share rows with `labeled`, never with the other two."""
    validation: Rows
    test: Rows
    notes: tuple[str, ...] = ()
    """Messages for the user."""
    warnings: tuple[str, ...] = ()
    """Messages about likely problems."""
    imbalance: tuple[str, ...] = ()
    """Ratios of the long tails that were drawn, such as ``pool 1/50``."""


def without_rows(table: ImageTable, split: Split, rows: Rows) -> tuple[Split, list[str]]:
    """Return the split without some rows, and the classes left without labeled images."""
    parts = ("labeled", "unlabeled", "validation", "test")
    remaining = {part: (old := getattr(split, part))[~np.isin(old, rows)] for part in parts}
    counts = table.class_counts(remaining["labeled"])
    empty = [table.classes[label] for label in np.flatnonzero(counts == 0)]
    return replace(split, **remaining), empty


def draw_split(
    table: ImageTable,
    *,
    seed: int,
    labels_per_class: int | None = None,
    num_labels: int | None = None,
    val_fraction: float = 0.0,
    test_fraction: float = 0.0,
    labeled_in_pool: bool | None = None,
    chosen: Rows | None = None,
    imbalance: ImbalanceSettings | None = None,
) -> Split:
    """Draw a split: first test, then labeled, then validation images.

    Parts of the table are used unchanged. Test images (if the table has none), then labeled images
    are drawn from its pool; pool images that are in no other part are unlabeled. Images in the
    labeled part of the table that are not drawn are in no part.

    Args:
        table: The images.
        seed: Seed of the run, the only source of randomness.
        labels_per_class: Number of labeled images per class, at least 1; of the largest class in a
            long tail; None for all images with a label.
        num_labels: Exact total number of labeled images, in proportion to the class sizes and at
            least one per class; mutually exclusive with `labels_per_class`.
        val_fraction: Fraction of each class's images with a label that are not test, in [0, 1);
            at least one if possible. Drawn from images not drawn as labeled or, if all with a label
            are labeled, from these, leaving at least one per class.
        test_fraction: Fraction of each class's pool images with a label, in [0, 1); at least one,
            leaving at least one.
        labeled_in_pool: True adds labeled images that come from the pool to the unlabeled ones;
            False removes unlabeled images that are byte-identical to labeled ones; None does
            neither.
        chosen: (n,) rows of the labeled images, which have a label and are in the labeled part or
            the pool; at least one per class; mutually exclusive with a number of labels. None
            draws them.
        imbalance: Draws long tails of the labeled and the unlabeled images: the first ones of the
            split without it, of each class. Test and validation images stay the same.

    Returns:
        The split; equal arguments give equal splits, and the labeled part doesn't depend on
        `val_fraction` (if a number of labels is set) nor on `labeled_in_pool`.

    Raises:
        DataError: Classes with too few images, a fraction for a part that the table has, or no
            way to compare images.
    """
    imbalance = imbalance or ImbalanceSettings()
    _check_request(
        table, labels_per_class, num_labels, val_fraction, test_fraction, chosen, imbalance
    )
    names = table.classes
    warnings: list[str] = []
    notes: list[str] = []

    def by_class(rows: Rows, purpose: str) -> list[Rows]:
        return hashed_order(table, rows, f"{purpose}/{seed}")

    pool = _part(table, "pool")
    test, validation = _part(table, "test"), _part(table, "validation")
    if test_fraction > 0:
        groups = by_class(pool, "test")
        shares = [_share(test_fraction, len(group)) for group in groups]
        if chosen is not None:
            groups = [group[~np.isin(group, chosen)] for group in groups]
        room = [len(group) - (chosen is None) for group in groups]
        test = _fronts(groups, [min(share, most) for share, most in zip(shares, room, strict=True)])

    candidates = np.setdiff1d(np.concatenate([_part(table, "labeled"), pool]), test)
    groups = by_class(candidates, "labelled")
    sizes = [len(group) for group in groups]
    if chosen is None:
        label_counts = _label_counts(names, sizes, labels_per_class, num_labels)
        labeled = _fronts(groups, label_counts)
    else:
        labeled = np.unique(chosen).astype(np.int64)
    chosen_all = chosen is None and labels_per_class is None and num_labels is None
    if num_labels is not None:
        notes.append("labeled images per class: " + _describe(names, label_counts))

    if val_fraction > 0:
        source = labeled if chosen_all else np.setdiff1d(candidates, labeled)
        groups = by_class(source, "validation")
        room = [len(group) - chosen_all for group in groups]
        shares = [_share(val_fraction, size) for size in sizes]
        val_counts = [min(share, most) for share, most in zip(shares, room, strict=True)]
        validation = _fronts(groups, val_counts)
        labeled = labeled[~np.isin(labeled, validation)]
        if without := [name for name, count in zip(names, val_counts, strict=True) if count == 0]:
            warnings.append(
                f"no validation image for class {summarize(without)}: all of its images with a "
                "label are labeled ones"
            )

    if imbalance.labels is not None:
        groups = by_class(labeled, "labelled")
        tail = label_tail([len(group) for group in groups], imbalance.labels, labels_per_class)
        labeled = _fronts(groups, tail)
        notes.append(
            f"long tail of labels ({ratio_text(imbalance.labels)}): " + _describe(names, tail)
        )
    used = np.concatenate([test, validation])
    if labeled_in_pool is not True:
        used = np.concatenate([used, labeled])
    unlabeled = np.concatenate([np.setdiff1d(pool, used), _part(table, "unlabeled")])
    if labeled_in_pool is False:
        known = np.concatenate([labeled, validation])
        duplicates = identical_rows(table, _part(table, "unlabeled"), known)
        unlabeled = unlabeled[~np.isin(unlabeled, duplicates)]
        if len(duplicates):
            notes.append(f"removed {len(duplicates)} unlabeled images that are labeled ones too")

    if imbalance.pool is not None:
        tail = pool_tail(names, table.labels[unlabeled], imbalance.pool)
        groups = by_class(unlabeled, "pool")
        # The labeled ones first: with a long tail too, they stay in the pool where they are in it.
        groups = [group[np.argsort(~np.isin(group, labeled), kind="stable")] for group in groups]
        unlabeled = _fronts(groups, tail)
        notes.append(
            f"long tail of the pool ({ratio_text(imbalance.pool)}): " + _describe(names, tail)
        )

    counts = np.bincount(table.labels[labeled], minlength=len(names))
    if single := [names[label] for label in np.flatnonzero(counts == 1)]:
        warnings.append(f"only one labeled image for {len(single)} classes: {summarize(single)}")
    most = int(counts.max())
    if imbalance.labels is None and (rare := np.flatnonzero(counts * RARE <= most).tolist()):
        description = _describe([names[label] for label in rare], counts[rare].tolist())
        warnings.append(f"far fewer labels than the largest class ({most}): {description}")
    if len(test) == 0:
        warnings.append("no test images: there will be no test result (--test-fraction sets some)")
    return Split(
        labeled, unlabeled, validation, test, tuple(notes), tuple(warnings), described(imbalance)
    )


def hashed_order(table: ImageTable, rows: Rows, purpose: str) -> list[Rows]:
    """Return the labeled rows of each class, ordered by SHA-256(purpose, key).

    Args:
        table: Images with their keys and labels.
        rows: (N,) rows of the table.
        purpose: Distinguishes orders of the same images.

    Returns:
        C arrays, one per class.
    """

    def rank(row: int) -> bytes:
        return hashlib.sha256(f"{purpose}\0{table.keys[row]}".encode()).digest()

    labels = table.labels[rows]
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(len(table.classes) + 1))
    groups = (rows[order[start:end]] for start, end in pairwise(ends.tolist()))
    return [_array(sorted(group.tolist(), key=rank)) for group in groups]


def identical_rows(table: ImageTable, rows: Rows, others: Rows) -> Rows:
    """Return the rows whose images are byte-identical to one of `others`.

    Raises:
        DataError: The table has no `ImageTable.digest`, and no argument is empty.
    """
    if len(rows) == 0 or len(others) == 0:
        return _array([])
    if table.digest is None:
        raise DataError(
            "this data set has no digests to compare images by; leave --no-labeled-in-pool out"
        )
    digests = {table.digest(row) for row in others.tolist()}
    return _array(row for row in rows.tolist() if table.digest(row) in digests)


def proportional(sizes: Sequence[int], total: int) -> list[int]:
    """Distribute `total` in proportion to `sizes`, each share at least 1 and at most the size.

    Uses the largest remainder method; ties go to the first class.

    Args:
        sizes: Numbers >= 1.
        total: Between the number of sizes and their sum.
    """
    quotas = [total * size / sum(sizes) for size in sizes]
    counts = [max(1, int(quota)) for quota in quotas]
    while missing := total - sum(counts):
        step = 1 if missing > 0 else -1
        possible = [i for i, size in enumerate(sizes) if 1 <= counts[i] + step <= size]
        counts[max(possible, key=lambda i: (step * (quotas[i] - counts[i]), -i))] += step
    return counts


def _check_request(
    table: ImageTable,
    labels_per_class: int | None,
    num_labels: int | None,
    val_fraction: float,
    test_fraction: float,
    chosen: Rows | None,
    imbalance: ImbalanceSettings,
) -> None:
    if chosen is not None:
        if labels_per_class is not None or num_labels is not None:
            raise DataError(
                "--labels says which images are labeled; leave --labels-per-class and "
                "--num-labels out"
            )
        counts = np.bincount(table.labels[chosen], minlength=len(table.classes))
        if missing := [table.classes[label] for label in np.flatnonzero(counts == 0)]:
            raise DataError([f"--labels names no image of class {name!r}" for name in missing])
    if imbalance.labels is not None and (chosen is not None or num_labels is not None):
        other = "--labels" if num_labels is None else "--num-labels"
        raise DataError(
            f"--imbalance-labels and {other} can't be used together; --labels-per-class sets the "
            "number of labels of the largest class, and --imbalance-pool leaves the labels as "
            "they are"
        )
    if labels_per_class is not None and num_labels is not None:
        raise DataError("--labels-per-class and --num-labels can't be used together")
    for flag, fraction, part in (
        ("--val-fraction", val_fraction, "validation"),
        ("--test-fraction", test_fraction, "test"),
    ):
        if fraction > 0 and len(_part(table, part)):
            raise DataError(f"the data has a {part} split of its own; leave {flag} out")
    if test_fraction > 0 and len(_part(table, "pool")) == 0:
        raise DataError("--test-fraction draws from a pool of images, and this data has none")


def _label_counts(
    names: Sequence[str], sizes: list[int], labels_per_class: int | None, num_labels: int | None
) -> list[int]:
    """Return the number of labeled images of each class."""
    if empty := [name for name, size in zip(names, sizes, strict=True) if size == 0]:
        raise DataError([f"class {name!r} has no image with a label" for name in empty])
    if labels_per_class is not None:
        short = [
            f"class {name!r} has {size} of the {labels_per_class} labeled images requested; "
            "lower --labels-per-class, or add images"
            for name, size in zip(names, sizes, strict=True)
            if size < labels_per_class
        ]
        if short:
            raise DataError(short)
        return [labels_per_class] * len(sizes)
    if num_labels is None:
        return list(sizes)
    if not len(names) <= num_labels <= sum(sizes):
        raise DataError(
            f"--num-labels must be between {len(names)}, one per class, and {sum(sizes)}, the "
            f"images with a label; got {num_labels}"
        )
    return proportional(sizes, num_labels)


def _describe(names: Sequence[str], counts: Iterable[int]) -> str:
    return summarize(
        [f"{name} {count}" for name, count in zip(names, counts, strict=True)], most=20
    )


def _share(fraction: float, size: int) -> int:
    """Return the share of a class, to the nearest whole image (a half rounds up), at least 1."""
    return max(1, int(fraction * size + 0.5))


def _fronts(groups: Sequence[Rows], counts: Sequence[int]) -> Rows:
    """Return the first rows of each group, by its count, in ascending order."""
    fronts = [group[: max(count, 0)] for group, count in zip(groups, counts, strict=True)]
    return np.sort(np.concatenate(fronts))


def _part(table: ImageTable, part: str) -> Rows:
    return np.flatnonzero(table.splits == part).astype(np.int64)


def _array(rows: Iterable[int]) -> Rows:
    return np.array(list(rows), dtype=np.int64)
