"""Files of class shares: ``--prior FILE``, and ``prior.json`` of a run."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.class_names import class_name, unguarded
from ssl_toolkit.data.readers.rows import text_lines
from ssl_toolkit.documents import Document
from ssl_toolkit.errors import DataError
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path, summarize

TOLERANCE = 0.01
"""Most by which rounded shares may miss a sum of 1; they are then divided by their sum."""


class PriorFile(Document):
    """Class shares of some images, with their uncertainty: ``prior.json``."""

    source: str
    """How they were estimated."""
    images: int
    """Number of images."""
    shares: dict[str, float]
    """By class name; they sum to 1."""
    intervals: dict[str, tuple[float, float]]
    """95 % interval of each share."""


def read_prior(path: Path) -> dict[str, float]:
    """Read class shares from a file, in its order.

    Args:
        path: Path to a ``.csv`` with the columns ``class`` and ``share``, or to a ``.json``: a map
            of classes to shares, or a `PriorFile`.

    Raises:
        DataError: The file is not found or not readable, or has a class twice.
    """
    where = f"--prior {display_path(path)}"
    suffix = path.suffix.lower()
    if suffix not in (".json", ".csv"):
        raise DataError(
            f"{where}: give a .json that maps classes to shares, or a .csv with the "
            "columns class and share"
        )
    text = "".join(text_lines(path, where))
    pairs = _from_json(text, where) if suffix == ".json" else _from_csv(text, where)
    shares: dict[str, float] = {}
    for name, value in pairs:
        key = class_name(name)
        if key in shares:
            raise DataError(f"{where}: class {name!r} has two shares; keep one")
        try:
            shares[key] = float(value)
        except (TypeError, ValueError):
            raise DataError(
                f"{where}: the share of class {name!r} is {value!r}, not a number"
            ) from None
    return shares


def ordered_prior(
    prior: Mapping[str, float], classes: Sequence[str], where: str = "--prior"
) -> NDArray[np.float64]:
    """Return class shares in the order of some classes; they sum to 1.

    Args:
        prior: Shares by class name.
        classes: C names.
        where: Start of the messages.

    Raises:
        DataError: A class is unknown or missing, a share is negative or not finite, or the sum of
            the shares isn't 1.
    """
    faults = []
    if unknown := [name for name in prior if name not in classes]:
        hint = did_you_mean(unknown[0], classes)
        faults.append(f"{where}: the data has no class {summarize(unknown)}{hint}")
    if missing := [name for name in classes if name not in prior]:
        faults.append(f"{where}: no share for class {summarize(missing)}; give one for each class")
    for name, value in prior.items():
        if not math.isfinite(value) or value < 0:
            faults.append(
                f"{where}: the share of class {name!r} is {value:g}; it must be 0 or more"
            )
    total = sum(prior.values())
    if not faults and abs(total - 1) > TOLERANCE:
        faults.append(f"{where}: the shares sum to {total:.4g}, not to 1; divide them by their sum")
    if faults:
        raise DataError(faults)
    return np.array([prior[name] for name in classes]) / total


def _from_json(text: str, where: str) -> list[tuple[str, Any]]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{where}: {twice[0]!r} is given twice; keep one")
        return dict(pairs)

    try:
        tree = json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: corrupt, not valid JSON: {error}") from None
    if isinstance(tree, dict) and isinstance(tree.get("shares"), dict):
        tree = tree["shares"]
    if not isinstance(tree, dict):
        raise DataError(f"{where}: must be a map of classes to shares")
    return [*tree.items()]


def _from_csv(text: str, where: str) -> list[tuple[str, Any]]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    head = [name.lower() for name in rows[0]] if rows else []
    if not {"class", "share"} <= {*head}:
        raise DataError(f"{where}: the first line must name the columns class and share")
    if wrong := [row for row in rows[1:] if len(row) != len(head)]:
        raise DataError(
            f"{where}: {','.join(wrong[0])!r} has {len(wrong[0])} columns, the first "
            f"line {len(head)}"
        )
    name_at, share_at = head.index("class"), head.index("share")
    return [(unguarded(row[name_at]), row[share_at]) for row in rows[1:]]
