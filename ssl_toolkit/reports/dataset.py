"""What a person's own images are like, and a sheet of some of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ssl_toolkit.data.cache.image_files import ImageFiles, files_of
from ssl_toolkit.data.class_names import class_name, look_alike
from ssl_toolkit.data.images.archives import container
from ssl_toolkit.data.readers.hugging_face import METADATA
from ssl_toolkit.data.splits.duplicates import find_leaks, same_images
from ssl_toolkit.interfaces import ImageTable, Part
from ssl_toolkit.text import display_text

_TILE, _GAP, _NAME = 96, 4, 160
"""Pixels: side of an image on the sheet, around it, and width of the names."""

_ACROSS, _DOWN = 10, 100
"""Most images of a class, and most classes, on a sheet."""


def inspect(data: Path, table: ImageTable, size: int) -> dict[str, Any]:
    """Facts about images, all of plain types.

    Args:
        data: what ``--data`` names.
        table: its images, read with unreadable ones skipped.
        size: the side at which they were decoded.

    Returns:
        By name: ``data``, ``layout``, ``classes``, ``counts`` (of each part), ``per_class`` (counts
        of each part), ``balance`` (largest and smallest number of images that may be labeled),
        of files ``widths`` and ``heights`` (least, median, largest, of upright images),
        ``modes``, ``extensions`` and ``unreadable`` (path and reason), ``duplicates`` (groups of
        byte-identical images), ``leaks`` (as in a run's leaks.json), ``warnings``, ``notes``.
    """
    files = files_of(table)
    leaks = find_leaks(table, table.parts)
    same = same_images(table, np.arange(len(table.keys)))
    learned = np.isin(table.parts, ("labeled", "pool")) & (table.labels >= 0)
    sizes = np.bincount(table.labels[learned], minlength=len(table.classes))
    warning = "" if files is None else files.warning
    return {
        "data": display_text(str(data)),
        "layout": _layout(data, table, files),
        "classes": list(table.classes),
        "counts": _counts(table.parts),
        "per_class": {
            name: _counts(table.parts[table.labels == label])
            for label, name in enumerate(table.classes)
        },
        "balance": {"largest": int(sizes.max()), "smallest": int(sizes.min())},
        **({} if files is None else _file_facts(files, size)),
        "duplicates": [[table.keys[row] for row in group.tolist()] for group in same],
        "leaks": leaks.content(table)["groups"],
        "warnings": [
            text
            for text in (
                warning,
                leaks.warning() if leaks else "",
                *look_alike(table.classes),
            )
            if text
        ],
        # The first one counts what stands above, and skipped images are listed with reasons.
        "notes": [note for note in table.notes[1:] if not note.startswith("skipped ")],
    }


def contact_sheet(table: ImageTable) -> Image.Image:
    """Some images of every class, a row each, and of the unlabeled ones.

    Images are spread evenly over those of a class. At most 100 classes are shown.

    Args:
        table: the images.
    """
    groups = [
        (name, np.flatnonzero(table.labels == label))
        for label, name in enumerate(table.classes[:_DOWN])
    ]
    groups.append(("(unlabeled)", np.flatnonzero(table.labels < 0)))
    groups = [(name, rows) for name, rows in groups if len(rows)]
    step = _TILE + _GAP
    sheet = Image.new("RGB", (_NAME + _ACROSS * step + _GAP, len(groups) * step + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for line, (name, rows) in enumerate(groups):
        top = _GAP + line * step
        shown = np.unique(np.linspace(0, len(rows) - 1, _ACROSS).astype(np.int64))
        # The font that is at hand everywhere has no other letters.
        told = name.encode("ascii", "backslashreplace").decode()
        draw.text((_GAP, top + _TILE // 3), f"{told[:22]}\n{len(rows)}", fill="black")
        for place, tile in enumerate(table.read(rows[shown], _TILE)):
            sheet.paste(Image.fromarray(tile), (_NAME + place * step, top))
    return sheet


def _file_facts(files: ImageFiles, size: int) -> dict[str, Any]:
    """What only files tell: their sizes before scaling, modes, extensions and faults."""
    shapes, modes = files.open(size).facts()
    suffixes = (Path(path).suffix.lower() for path in files)
    return {
        "widths": _range(shapes[:, 0]),
        "heights": _range(shapes[:, 1]),
        "modes": dict(Counter(modes)),
        "extensions": dict(Counter(suffixes)),
        "unreadable": [
            {"path": display_text(path), "reason": reason} for path, reason in files.dropped
        ],
    }


def _counts(parts: NDArray[np.str_]) -> dict[str, int]:
    counts = {part: int((parts == part).sum()) for part in get_args(Part)}
    return {part: count for part, count in counts.items() if count}


def _range(values: NDArray[np.int32]) -> dict[str, float]:
    return {
        "least": int(values.min()),
        "median": float(np.median(values)),
        "largest": int(values.max()),
    }


def _layout(data: Path, table: ImageTable, images: ImageFiles | None) -> str:
    if images is None:
        kind = "images" if table.features is None else f"features of {table.features.shape[1]}"
        return f"arrays of a .npz file, {kind}"
    archive = container(images[0])
    if archive is not None:
        return f"images inside {Path(archive).suffix.lower()} files"
    if data.is_file():
        return f"a list of images, {display_text(data.name)}"
    if any((data / name).exists() for name in METADATA):
        return "an image folder with metadata"
    told = []
    for part in get_args(Part):
        rows = np.flatnonzero(table.parts == part)
        if len(rows):
            tops = {class_name(table.keys[row].split("/")[0]) for row in rows.tolist()}
            kind = "" if part == "unlabeled" else "<class>/"
            told.append("<class>/" if tops <= set(table.classes) else f"{min(tops)}/{kind}")
    return f"folders: {', '.join(told)}"
