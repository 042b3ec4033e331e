"""Labels in the forms in which Python code and arrays hold them, as names of classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.class_names import UNLABELED, class_name
from ssl_toolkit.errors import DataError

_NUMBER = re.compile(r"-?(0|[1-9]\d*)")


def label_names(values: Any, count: int, where: str) -> list[str]:
    """Return the class name of each image, empty if it has no label.

    Args:
        values: (N,) or (N, 1) numbers or texts: an array, a tensor or a list. -1, None, NaN and the
            texts that mean no label in a manifest mean none; every other is a class.
        count: N.
        where: The argument or array, for messages.

    Raises:
        DataError: Another number of labels, or one that is neither a text nor a whole number.
    """
    values = values if hasattr(values, "shape") else list(values)
    shape = tuple(getattr(values, "shape", (len(values),)))
    if shape not in ((count,), (count, 1)):
        raise DataError(
            f"{where}: {count} images need ({count},) labels, one each, got shape {shape}"
        )
    if hasattr(values, "reshape"):
        values = values.reshape(-1).tolist()
    return [label_name(value, where) for value in values]


def label_name(value: Any, where: str) -> str:
    """Return the class name that one label means, empty for none. As `label_names`."""
    text = label_text(value)
    if text is None:
        raise DataError(
            f"{where}: a label is a text or a whole number (-1 or None for none), got a "
            f"{type(value).__name__}"
        )
    name = class_name(text.strip())
    return "" if name.lower() in UNLABELED else name


def label_text(value: Any) -> str | None:
    """Return a label as text, empty for None and NaN; None if it can't be a label."""
    if getattr(value, "ndim", None) == 0:  # a number of NumPy's or torch's
        value = value.item()
    if value is None or value != value:  # NaN, which pandas has for a missing label
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


def sorted_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the classes among names of labels, sorted by number if all are, else by text."""
    classes = {*names} - {""}
    by_number = all(map(_NUMBER.fullmatch, classes))
    return tuple(sorted(classes, key=lambda name: (int(name) if by_number else 0, name)))


def label_numbers(names: Iterable[str], classes: Sequence[str]) -> NDArray[np.int64]:
    """Return the index of each name in `classes`, which has all of them; -1 for none."""
    indices = {name: i for i, name in enumerate(classes)} | {"": -1}
    return np.array([indices[name] for name in names], dtype=np.int64)
