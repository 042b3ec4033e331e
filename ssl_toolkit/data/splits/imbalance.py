"""Draw a long tail: fewer images from class to class, by the hashed order of the split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.sections import ImbalanceSettings
from ssl_toolkit.errors import DataError
from ssl_toolkit.text import summarize

_ROUNDING = 1e-9  # a count that is whole except for rounding isn't rounded down


def long_tail(largest: int, ratio: float, classes: int) -> list[int]:
    """Return the number of images of each class, exponentially from the first to the last.

    Class c of C has ``largest * ratio ** (-c / (C - 1))`` images, rounded down as in the papers,
    and at least 1. For a ratio below 1 these are the counts of 1 / ratio in reversed order.

    Args:
        largest: Number of images of the largest class, at least 1.
        ratio: Of the first class to the last, above 0.
        classes: Number of classes C.

    >>> long_tail(1500, 100, 10)
    [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15]
    """
    shares = _shares(max(ratio, 1 / ratio), classes)
    counts = [max(1, int(largest * share + _ROUNDING)) for share in shares]
    return counts if ratio >= 1 else counts[::-1]


def longest_tail(sizes: Sequence[int], ratio: float) -> list[int]:
    """Return the largest `long_tail` whose counts no class exceeds.

    The largest class of an even set stays whole.

    Args:
        sizes: Numbers of images of the classes, each at least 1.
        ratio: Of the first class to the last, above 0.
    """
    ordered = sizes if ratio >= 1 else sizes[::-1]
    shares = _shares(max(ratio, 1 / ratio), len(sizes))
    largest = max(1, int(min((n + 1) / s for n, s in zip(ordered, shares, strict=True))))
    while any(
        count > size
        for count, size in zip(long_tail(largest, ratio, len(sizes)), sizes, strict=True)
    ):
        largest -= 1
    return long_tail(largest, ratio, len(sizes))


def described(imbalance: ImbalanceSettings) -> tuple[str, ...]:
    """Return the ratios as texts such as ``labels 50`` and ``pool 1/50``; none without any."""
    return tuple(f"{part} {ratio_text(ratio)}" for part, ratio in imbalance if ratio is not None)


def ratio_text(ratio: float) -> str:
    """Return a ratio as text, in the form ``1/50`` below 1."""
    return f"{ratio:g}" if ratio >= 1 else f"1/{1 / ratio:g}"


def label_tail(sizes: Sequence[int], ratio: float, largest: int | None) -> list[int]:
    """Return the number of labels of each class in a long tail.

    Args:
        sizes: Number of labels of each class without it.
        ratio: Of the first class to the last.
        largest: Number of labels of the largest class; None for as many as the classes have.
    """
    return longest_tail(sizes, ratio) if largest is None else long_tail(largest, ratio, len(sizes))


def pool_tail(names: Sequence[str], labels: NDArray[np.int64], ratio: float) -> list[int]:
    """Return the number of unlabeled images of each class in a long tail of them.

    Args:
        names: Of the classes.
        labels: (N,) hidden labels of the unlabeled images, -1 where there is none.
        ratio: Of the first class to the last.

    Raises:
        DataError: A class has no unlabeled images, or the class of some is not known.
    """
    flag = f"--imbalance-pool {ratio_text(ratio)}"
    if unknown := int((labels < 0).sum()):
        raise DataError(
            f"{flag}: the classes of {unknown:,} of the {len(labels):,} unlabeled images are not "
            "known, so no long tail can be drawn from them; --imbalance-labels draws one of the "
            "labels alone"
        )
    sizes = np.bincount(labels, minlength=len(names)).tolist()
    if empty := [name for name, size in zip(names, sizes, strict=True) if size == 0]:
        raise DataError(
            f"{flag}: no unlabeled image of class {summarize(empty)}; lower --labels-per-class, "
            "or add images"
        )
    return longest_tail(sizes, ratio)


def _shares(ratio: float, classes: int) -> list[float]:
    return [ratio ** (-i / max(classes - 1, 1)) for i in range(classes)]
