"""Facts about a data set, and a contact sheet of some of its images."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NotRequired, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ssl_toolkit.config.defaults import ALGORITHM
from ssl_toolkit.config.images import Size, size_text
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.data.cache import Progress
from ssl_toolkit.data.class_names import class_name, look_alike
from ssl_toolkit.data.images.archives import container
from ssl_toolkit.data.images.levels import for_display
from ssl_toolkit.data.load import load_table
from ssl_toolkit.data.readers.hugging_face import METADATA
from ssl_toolkit.data.readers.image_files import ImageFiles, files_of
from ssl_toolkit.data.splits.duplicates import find_leaks, same_images
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.splitting import split_of
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import at_home
from ssl_toolkit.inference.run_inputs import check_beside
from ssl_toolkit.interfaces import ImageTable, SplitName
from ssl_toolkit.runs.advice import uneven_advice
from ssl_toolkit.tabular import write_image
from ssl_toolkit.text import display_text

_TILE, _GAP, _NAME = 96, 4, 160
"""In pixels: side of an image, gap around it, and width of the names."""

_ACROSS, _DOWN = 10, 100
"""Maximum numbers of images of a class, and of classes, on a sheet."""


class Balance(TypedDict):
    """Number of images that may be labeled in the largest and the smallest class."""

    largest: int
    smallest: int


class Range(TypedDict):
    """Sizes in pixels."""

    least: int
    median: float
    largest: int


class DatasetFacts(TypedDict):
    """Facts about a data set, as `inspect` returns them."""

    data: str
    layout: str
    classes: list[str]
    counts: dict[str, int]
    """Images by split."""
    per_class: dict[str, dict[str, int]]
    """Images by class and split."""
    balance: Balance
    widths: NotRequired[Range]
    """Of upright images; this and the next four only for image files."""
    heights: NotRequired[Range]
    modes: NotRequired[dict[str, int]]
    extensions: NotRequired[dict[str, int]]
    unreadable: NotRequired[list[dict[str, str]]]
    """Path and reason of each."""
    duplicates: list[list[str]]
    """Groups of byte-identical images."""
    leaks: list[list[dict[str, str]]]
    """Groups of equal images in splits where they must not be, as in ``leaks.json`` of a run."""
    warnings: list[str]
    notes: list[str]
    advice: list[str]
    """Add-ons for uneven classes, and a command that uses one."""


def inspect(
    data: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    image_size: Size | str = 32,
    channels: int | str | None = None,
    bits: int | str | None = None,
    fit: str | None = None,
    workers: int | str | None = None,
    labels_per_class: int | str | None = None,
    imbalance: float | str | None = None,
    contact_sheet: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> DatasetFacts:
    """Describe what a run on some data would use.

    The decoded images are cached for a run of the same image size and fit.

    Args:
        data: Path to a folder, manifest, archive or ``.npz`` file, as for training.
        root: Path to the folder that the paths of a manifest are relative to.
        image_size: Side length in pixels of the decoded images, or ``HEIGHTxWIDTH``.
        channels: Number of channels; None for 3, or those of arrays.
        bits: Bits of a channel, 8 or 16; None for 8, or those of arrays.
        fit: ``crop`` (default) or ``pad``: how images get the aspect ratio of the image size.
        workers: Number of threads that decode images.
        labels_per_class: Labels of the largest class of `imbalance`; None for the most possible.
        imbalance: Ratio of the first class to the last: adds notes with the counts of each class
            of a run with these long tails.
        contact_sheet: Path to a ``.png`` file to write, with some images of each class.
        progress: Called while images are decoded.

    Raises:
        DataError: The data is not found, not readable, or has no classes.
        ConfigError: A value is wrong, `labels_per_class` has no effect, or the contact sheet can't
            be written.
    """
    if labels_per_class is not None and imbalance is None:
        raise ConfigError("--labels-per-class: needs --imbalance here; add it, or leave this out")
    sheet = None if contact_sheet is None else at_home(contact_sheet)
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise ConfigError(f"--contact-sheet {sheet}: the contact sheet must be a .png file")
    base = None if root is None else at_home(root)
    check_beside(sheet, at_home(data), base)
    flags = {"data": str(at_home(data)), "root": base and str(base), "fit": fit}
    size = image_size if isinstance(image_size, str) else size_text(image_size)
    form = {"image_size": size, "channels": channels, "bits": bits}
    more = {"workers": workers, "on_bad_image": "skip"}
    tails = {"labels_per_class": labels_per_class, "imbalance": imbalance}
    config = load_config([], flags | form | more | tails)
    settings = config.settings
    table = load_table(settings, progress)
    facts = _facts(Path(data), table, settings.image_size or 32)
    if imbalance is not None:
        split = split_of(table, resolve_config(config)[0].settings)[1]
        facts["notes"] += [note for note in split.notes if note.startswith("long tail")]
    if sheet is not None:
        try:
            write_image(sheet, draw_contact_sheet(table))
        except OSError as error:
            raise ConfigError(f"--contact-sheet {sheet}: {error.strerror or error}") from None
    return facts


def _facts(data: Path, table: ImageTable, size: Size) -> DatasetFacts:
    files = files_of(table)
    leaks = find_leaks(table, table.splits)
    duplicates = same_images(table, np.arange(len(table.keys)))
    labeled = np.isin(table.splits, ("labeled", "pool")) & (table.labels >= 0)
    sizes = np.bincount(table.labels[labeled], minlength=len(table.classes))
    warnings = ["" if files is None else files.warning, leaks.warning() if leaks else ""]
    warnings += look_alike(table.classes)
    facts: DatasetFacts = {
        "data": display_text(str(data)),
        "layout": _layout(data, table, files),
        "classes": list(table.classes),
        "counts": _counts(table.splits),
        "per_class": {
            name: _counts(table.splits[table.labels == label])
            for label, name in enumerate(table.classes)
        },
        "balance": {"largest": int(sizes.max()), "smallest": int(sizes.min())},
        "duplicates": [[table.keys[row] for row in group.tolist()] for group in duplicates],
        "leaks": leaks.file(table).tree()["groups"],
        "warnings": [text for text in warnings if text],
        # The first note repeats the counts above, and skipped images are listed with reasons.
        "advice": uneven_advice(
            {"labels": dict(zip(table.classes, sizes.tolist(), strict=True))},
            ALGORITHM,
            ["--data", str(data)],
            f"runs/{ALGORITHM}",
        ),
        "notes": [note for note in table.notes[1:] if not note.startswith("skipped ")],
    }
    if files is not None:
        files.open(size)
        shapes, modes = files.shapes_and_modes(size)
        facts["widths"], facts["heights"] = _range(shapes[:, 0]), _range(shapes[:, 1])
        facts["modes"] = dict(Counter(modes))
        facts["extensions"] = dict(Counter(Path(path).suffix.lower() for path in files))
        facts["unreadable"] = [
            {"path": display_text(path), "reason": reason} for path, reason in files.dropped
        ]
    return facts


def draw_contact_sheet(table: ImageTable) -> Image.Image:
    """Draw some images of every class, one row per class, and of the unlabeled ones.

    The images are evenly spaced in the order of the table. At most 100 classes are shown.

    Args:
        table: The images.
    """
    labels = [*enumerate(table.classes[:_DOWN]), (-1, "(unlabeled)")]
    groups = [(name, np.flatnonzero(table.labels == label)) for label, name in labels]
    groups = [(name, rows) for name, rows in groups if len(rows)]
    step = _TILE + _GAP
    sheet = Image.new("RGB", (_NAME + _ACROSS * step + _GAP, len(groups) * step + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for line, (name, rows) in enumerate(groups):
        top = _GAP + line * step
        shown = np.unique(np.linspace(0, len(rows) - 1, _ACROSS).astype(np.int64))
        # The font of Pillow, which is always available, has ASCII letters only.
        label = name.encode("ascii", "backslashreplace").decode()
        draw.text((_GAP, top + _TILE // 3), f"{label[:22]}\n{len(rows)}", fill="black")
        for column, tile in enumerate(for_display(table.read(rows[shown], _TILE))):
            sheet.paste(Image.fromarray(tile), (_NAME + column * step, top))
    return sheet


def _counts(parts: NDArray[np.str_]) -> dict[str, int]:
    return {part: n for part in get_args(SplitName) if (n := int((parts == part).sum()))}


def _range(values: NDArray[np.int32]) -> Range:
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
    folders = []
    for part in get_args(SplitName):
        rows = np.flatnonzero(table.splits == part)
        if len(rows):
            tops = {class_name(table.keys[row].split("/")[0]) for row in rows.tolist()}
            kind = "" if part == "unlabeled" else "<class>/"
            folders.append("<class>/" if tops <= set(table.classes) else f"{min(tops)}/{kind}")
    return f"folders: {', '.join(folders)}"
