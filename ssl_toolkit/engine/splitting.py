"""The split of a run: loaded or drawn, with its pseudo labels, without its leaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.data.load import chosen_labels, load_table
from ssl_toolkit.data.splits.draw import Split, draw_split
from ssl_toolkit.data.splits.duplicates import Leaks, drop_leaks, find_leaks, split_parts
from ssl_toolkit.data.splits.imbalance import described
from ssl_toolkit.data.splits.multilabel import draw_multilabel_split
from ssl_toolkit.data.splits.pseudo_labels import add_labeled, check_labeled, pseudo_labeled
from ssl_toolkit.data.splits.split_file import StoredSplit, load_split
from ssl_toolkit.data.splits.strangers import add_strangers, count_strangers, stranger_count
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable


def drawn_split(settings: ResolvedSettings) -> Split:
    """Return the split of the settings; opens no image file.

    Raises:
        DataError: as `split_of`, or the data is not found.
    """
    return split_of(load_table(settings, lazily=True), settings)[1]


def split_of(
    table: ImageTable, settings: ResolvedSettings
) -> tuple[ImageTable, Split, StoredSplit | None]:
    """Return the table, the split that is loaded or drawn, and the split file, if any.

    Raises:
        DataError: split file, labels and data contradict each other.
    """
    table, chosen = chosen_labels(table, settings)
    labeled, rows = table, None
    if settings.pseudo_labels is not None:
        labeled, rows = pseudo_labeled(table, Path(settings.pseudo_labels))
    stored = None if settings.split is None else load_split(Path(settings.split), labeled)
    if stored is not None:
        split = stored.split
    elif table.label_sets is not None:
        split = draw_multilabel_split(
            table,
            seed=settings.seed,
            labels_per_class=settings.labels_per_class,
            num_labels=settings.num_labels,
            val_fraction=settings.val_fraction,
            test_fraction=settings.test_fraction,
            labeled_in_pool=settings.labeled_in_pool,
            chosen=chosen,
        )
    else:
        split = draw_split(
            table,
            seed=settings.seed,
            labels_per_class=settings.labels_per_class,
            num_labels=settings.num_labels,
            val_fraction=settings.val_fraction,
            test_fraction=settings.test_fraction,
            labeled_in_pool=settings.labeled_in_pool,
            chosen=chosen,
            imbalance=settings.imbalance,
        )
        if (name := settings.strangers.data) is not None:
            split = add_strangers(table, split, settings.strangers.fraction, settings.seed, name)
    if stored is not None and (tails := described(settings.imbalance)) not in ((), split.imbalance):
        raise DataError(
            f"--split {settings.split} was drawn with {_tails(split.imbalance)}, not with "
            f"{_tails(tails)}; leave --imbalance out to use it unchanged"
        )
    if stored is not None and settings.strangers.data is not None:
        strangers = count_strangers(labeled, split)
        known = len(split.unlabeled) - strangers
        if strangers != stranger_count(known, settings.strangers.fraction):
            raise DataError(
                f"--split {settings.split} has {strangers:,} strangers beside {known:,} unlabeled "
                f"images, not the fraction {settings.strangers.fraction:g}; leave --strangers out "
                "if it has none, or give its --strangers-fraction"
            )
    if chosen is not None and len(others := np.setdiff1d(split.labeled, chosen)):
        raise DataError(
            f"--labels names other labeled images than --split {settings.split} "
            f"({len(others):,} are not in it); leave one of them out"
        )
    if rows is not None:
        if stored is None:  # a split file mixes labels of the data and pseudo labels
            check_labeled(table, labeled, split.labeled)
        drawn, split = split, add_labeled(table, split, rows, keep=settings.labeled_in_pool is True)
        if stored is not None and len(split.labeled) > len(drawn.labeled):
            stored.check(table)  # of the data without the pseudo labels
            stored = None
    return labeled, split, stored


def _tails(ratios: Sequence[str]) -> str:
    return f"an imbalance of {' and '.join(ratios)}" if ratios else "no imbalance"


def without_leaks(
    table: ImageTable, split: Split, settings: ResolvedSettings
) -> tuple[Split, Leaks]:
    """Return the split, without duplicates under ``drop_leaks``, and all duplicates.

    Images of a named data set are compared only under ``drop_leaks``: its split is the published
    one, and hashing the images takes time at every start.
    """
    if settings.data is None and not settings.drop_leaks:
        return split, Leaks()
    parts = split_parts(table, split)
    if settings.stream_buffer is not None:  # streaming avoids reading them all
        parts[parts == "unlabeled"] = ""
    leaks = find_leaks(table, parts)
    return drop_leaks(table, split, leaks) if settings.drop_leaks else (split, leaks)
