"""Read images or features and their labels from the arrays of an ``.npz`` file."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import zipfile
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.config.images import RGB8, PixelFormat, Size
from ssl_toolkit.data.class_names import class_name
from ssl_toolkit.data.images.levels import Levels
from ssl_toolkit.data.label_values import label_names, label_numbers, sorted_classes
from ssl_toolkit.data.packed_strings import PackedStrings, may_have_duplicates
from ssl_toolkit.data.readers.arrays import ImageArray, array_table
from ssl_toolkit.data.readers.folders import left_by_tools
from ssl_toolkit.data.readers.label_sets import classes_in, ordered_sets
from ssl_toolkit.data.readers.manifests import PARTS
from ssl_toolkit.data.readers.rows import SEPARATOR
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import check_format
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import display_path, summarize

Array = NDArray[Any]

LAYOUT = (
    "images (N, H, W) or (N, H, W, C), or features (N, D), and labels (N,); or train_images, "
    "train_labels, val_images and so on"
)
EMBEDDINGS_FORMAT = 1
"""Format number of the files that ``ssl-toolkit embed`` writes; other files have none."""

_NAME = re.compile(rf"(?:({'|'.join(filter(None, PARTS))})_)?(images|features)")
_BLOCK = 2**24  # elements


@dataclass(frozen=True)
class _Group:
    """The images of one array."""

    prefix: str
    values: Array
    names: list[str]
    splits: NDArray[np.str_]


def feature_length(path: Path) -> int:
    """Return the length of the features of a file, from its headers; 0 if unreadable."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("features.npy"))
            with archive.open(name) as file:
                return int(_header(file)[0][-1])
    except (OSError, ValueError, LookupError, StopIteration, zipfile.BadZipFile):
        return 0


def read_npz(
    path: Path, least_classes: int = 2, bits: int = 8, *, multilabel: bool = False
) -> ImageTable:
    """Read a file of arrays, as ``np.savez`` writes it.

    The file has either ``images`` (or ``features``) and optionally ``labels``, ``splits`` (named as
    in a manifest), ``classes`` (which integer labels index) and ``keys``; or arrays for each split,
    ``train_images``, ``train_labels``, ``val_images`` and so on, as in MedMNIST. Uncompressed
    arrays are memory-mapped instead of read.

    Args:
        path: Path to the file.
        least_classes: Number of classes that are needed.
        bits: 8 or 16, to which floats are rounded.
        multilabel: Read labels (N, C) of zeros and ones; a row of -1 means no label.

    Raises:
        DataError: The file can't be read, or an array is missing or has another shape.
    """
    where = display_path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            files = [name for name in archive.namelist() if name.endswith(".npy")]
            own = [name for name in files if not any(map(left_by_tools, name.split("/")))]
            members = {name.removesuffix(".npy"): name for name in own}
            arrays = {name: _array(archive, path, member) for name, member in members.items()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"can't read {where}: {error}") from None
    if "format" in arrays:  # written by `ssl-toolkit embed`
        check_format(path, str(arrays.pop("format")), EMBEDDINGS_FORMAT, DataError)
    matches = {name: match for name in arrays if (match := _NAME.fullmatch(name))}
    kinds = {match[2] for match in matches.values()}
    if len(kinds) != 1:
        names = "both images and features" if kinds else summarize([*arrays]) or "no arrays"
        raise DataError(f"{where} has {names}; it needs {LAYOUT}")
    classes, groups, used = None, [], {*matches, "classes", "splits", "keys"}
    if "classes" in arrays:
        classes = tuple(class_name(str(name)) for name in arrays["classes"].reshape(-1).tolist())
    if multilabel:
        arrays, classes = _with_texts(arrays, classes, where)
    for name, match in matches.items():
        labels_name = f"{match[1]}_labels" if match[1] else "labels"
        used.add(labels_name)
        groups.append(
            _group(arrays, name, labels_name, match[1] or "", classes, where, several=multilabel)
        )
    sets = sorted({name for group in groups for name in group.names} - {""})
    if classes is None:
        classes = sorted_classes(sets)
    if len(classes) < least_classes:
        raise DataError(f"{where} has labels of too few classes ({len(classes)} of at least 2)")
    numbered = tuple(sets) if multilabel else classes
    if kinds == {"features"}:
        table = _feature_table(numbered, groups, where)
    else:
        table = _image_table(numbered, groups, where, bits)
    if multilabel:
        label_sets, numbers = ordered_sets([*map(classes_in, sets)], classes)
        labels = np.append(numbers, -1)[table.labels]
        table = replace(table, classes=classes, labels=labels, label_sets=label_sets)
    if "keys" in arrays and len(groups) == 1:
        keys = PackedStrings(map(str, arrays["keys"].tolist()))
        if len(keys) != len(table.keys) or may_have_duplicates(keys):
            raise DataError(f"{where}: keys must be {len(table.keys)} different texts")
        table = replace(table, keys=keys)
    if unused := sorted(arrays.keys() - used):
        note = f"arrays of {where} that are not used: {summarize(unused)}"
        table = replace(table, notes=(note,))
    return table


def _with_texts(
    arrays: dict[str, Array], classes: tuple[str, ...] | None, where: str
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the arrays with labels (N, C) as texts for `classes_in`, and the C classes."""
    texts = {}
    classes = None if classes is None else tuple(name.strip() for name in classes)
    for name in [name for name in arrays if name == "labels" or name.endswith("_labels")]:
        labels = arrays[name]
        classes = classes or tuple(map(str, range(labels.shape[-1] if labels.ndim == 2 else 0)))
        if labels.ndim != 2 or labels.dtype.kind not in "biuf" or labels.shape[1] != len(classes):
            raise DataError(
                f"{where}, {name}: --task multilabel needs (N, C) zeros and ones, a column for "
                f"each class, got {tuple(labels.shape)} {labels.dtype}"
            )
        labels = labels.astype(np.float64)
        has_none = (labels == -1).all(axis=1)
        if not np.isin(labels[~has_none], (0, 1)).all():
            raise DataError(
                f"{where}, {name}: labels are 0 or 1, and all of a row -1 without a label"
            )
        texts[name] = np.array(
            [
                "" if unknown else SEPARATOR.join(compress(classes, row)) or SEPARATOR
                for row, unknown in zip(labels.tolist(), has_none.tolist(), strict=True)
            ]
        )
    for place, name in enumerate(classes or ()):
        if not name or SEPARATOR in name or name in (classes or ())[:place]:
            raise DataError(
                f"{where}, classes: {name!r} is empty, repeated or has {SEPARATOR}; rename it"
            )
    return arrays | texts, classes or ()


def _group(
    arrays: dict[str, Array],
    name: str,
    labels_name: str,
    split: str,
    classes: tuple[str, ...] | None,
    where: str,
    *,
    several: bool,
) -> _Group:
    """Return one array with its labels and parts; images without a label become unlabeled ones."""
    values = arrays[name]
    count = len(values) if values.ndim else 0
    if not count:
        raise DataError(f"{where}: {name} has shape {values.shape}; it needs {LAYOUT}")
    names = [""] * count
    if labels_name in arrays:
        names = _names(arrays[labels_name], count, classes, f"{where}, {labels_name}", several)
    splits = [split] * count
    if not split and "splits" in arrays:
        splits = [str(text).strip().lower() for text in arrays["splits"].reshape(-1).tolist()]
    if len(splits) != count or {*splits} - PARTS.keys():
        known = ", ".join(filter(None, PARTS))
        raise DataError(f"{where}: splits must be {count} texts, each empty or one of {known}")
    parts = np.array([PARTS[split] for split in splits])
    is_unlabeled = np.array([not label for label in names])
    if (is_unlabeled & np.isin(parts, ("labeled", "validation", "test"))).any():
        raise DataError(f"{where}: some of {name} are for validation or test and have no label")
    return _Group(f"{split or name}/", values, names, np.where(is_unlabeled, "unlabeled", parts))


def _names(
    labels: Array, count: int, classes: tuple[str, ...] | None, where: str, several: bool
) -> list[str]:
    """Return the class of each image, of several those of `_with_texts`; empty for none."""
    if several and len(labels) == count:
        return list(map(str, labels.tolist()))
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(
            f"{where}: labels are (N,), one class per image, got {labels.shape}; --task multilabel "
            "reads (N, C)"
        )
    names = label_names(labels, count, where)
    if classes is not None and labels.dtype.kind in "iu":
        names = [classes[int(n)] if n and -1 < int(n) < len(classes) else n for n in names]
    if classes is not None and (unknown := {*names} - {*classes, ""}):
        raise DataError(f"{where}: {summarize(sorted(unknown))} are not among its classes")
    return names


def _image_table(
    classes: tuple[str, ...], groups: list[_Group], where: str, bits: int
) -> ImageTable:
    arrays = []
    for group in groups:
        images = as_levels(group.values, f"{where}, {group.prefix[:-1]}", bits)
        labels = label_numbers(group.names, classes)
        arrays.append(ImageArray(group.prefix, group.splits, images, labels))
    return array_table(classes, arrays)


def _feature_table(classes: tuple[str, ...], groups: list[_Group], where: str) -> ImageTable:
    shapes = {group.values.shape[1:] for group in groups}
    if len(shapes) > 1 or len(shapes.copy().pop()) != 1 or (0,) in shapes:
        raise DataError(
            f"{where}: features are (N, D) of one length D, got {summarize([*map(str, shapes)])}"
        )
    values = [np.asarray(group.values, dtype=np.float32) for group in groups]
    features: NDArray[np.float32] = np.concatenate(values)
    if bad := int((~np.isfinite(features).all(axis=1)).sum()):
        raise DataError(f"{where}: {bad} of {len(features)} feature vectors are not finite")

    def read(rows: NDArray[np.int64], size: Size) -> NDArray[np.uint8]:
        raise DataError(f"{where} holds features, not images")

    def digest(row: int) -> str:
        return hashlib.sha256(features[row].tobytes()).hexdigest()

    keys = (f"{group.prefix}{n:08d}" for group in groups for n in range(len(group.values)))
    return ImageTable(
        classes=classes,
        keys=PackedStrings(keys),
        labels=np.concatenate([label_numbers(group.names, classes) for group in groups]),
        splits=np.concatenate([group.splits for group in groups]),
        read=read,
        digest=digest,
        features=features,
    )


def checked_stack(images: Array, where: str) -> Array:
    """Return a stack of images as (N, H, W), or (N, H, W, C) with at least two channels.

    Raises:
        DataError: Unsupported shape or dtype.
    """
    actual = f"{tuple(images.shape)} {images.dtype}"
    if images.ndim not in (3, 4) or 0 in images.shape[1:] or _is_channels_first(images.shape):
        way_out = "; np.moveaxis(X, 1, -1) puts the channels last" if images.ndim == 4 else ""
        raise DataError(
            f"{where}: images are (N, H, W, C), (N, H, W) or (N, H, W, 1), got {actual}{way_out}"
        )
    if images.dtype not in (np.uint8, np.uint16) and images.dtype.kind != "f":
        raise DataError(f"{where}: images are uint8, uint16 or float in [0, 1], got {actual}")
    return images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images


def _is_channels_first(shape: tuple[int, ...]) -> bool:
    """Return True if a shape looks like (N, C, H, W): no images are 3 pixels high.

    Neither are images with many channels at most 16 pixels high and at least twice as wide.
    """
    if len(shape) < 4 or shape[3] <= 4:
        return False
    first, rest = shape[1], shape[2:]
    return first <= 4 or first < rest[0] == rest[1] or (first <= 16 and 2 * first <= min(rest))


def as_levels(images: Array, where: str, bits: int = 8) -> Levels:
    """Return the result of `checked_stack` as integers; floats in [0, 1] are rounded to `bits`.

    Raises:
        DataError: As `checked_stack`, or some floats are outside [0, 1].
    """
    images = checked_stack(images, where)
    if images.dtype.kind == "u":
        return images
    form = PixelFormat(bits=bits)
    converted = np.empty(images.shape, dtype=form.dtype)
    step = max(1, _BLOCK // max(1, images[0].size))
    for start in range(0, len(images), step):
        block = images[start : start + step]
        if not (block.min() >= 0 and block.max() <= 1):
            raise DataError(
                f"{where}: floats must be in [0, 1]; divide 0..255 by 255, or give uint8"
            )
        converted[start : start + step] = np.rint(block * form.white)
    return converted


def array_format(path: Path) -> PixelFormat:
    """Return channels and bits of the images of a file, from its headers; RGB, 8 bits for gray.

    Floats have 8 bits. An unreadable file has the default format: reading it reports the error.
    """
    formats = []
    faults = OSError, ValueError, LookupError, zipfile.BadZipFile
    with contextlib.suppress(*faults), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            match = _NAME.fullmatch(name.removesuffix(".npy"))
            if match is not None and match[2] == "images":
                with archive.open(name) as file:
                    shape, _, dtype = _header(file)
                channels = shape[3] if len(shape) == 4 and shape[3] != 1 else 3
                formats.append(PixelFormat(channels, 16 if dtype == np.uint16 else 8))
    return max(formats, key=lambda form: (form.channels, form.bits), default=RGB8)


def _array(archive: zipfile.ZipFile, path: Path, member: str) -> Array:
    """Return an array of the file; memory-mapped if it is stored uncompressed."""
    info = archive.getinfo(member)
    with archive.open(member) as file:
        shape, fortran, dtype = _header(file)
        if dtype.hasobject:
            raise ValueError(f"{member} holds Python objects; save numbers or texts")
        if info.compress_type != zipfile.ZIP_STORED or 0 in shape or not shape:
            file.seek(0)
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            return array
        header = file.seek(0, io.SEEK_CUR)
    with path.open("rb") as raw:  # lengths in the local header may differ from the directory's
        raw.seek(info.header_offset + 26)
        lengths = np.frombuffer(raw.read(4), dtype="<u2")
    start = info.header_offset + 30 + int(lengths.sum()) + header
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    formats = np.lib.format
    first = formats.read_magic(file) == (1, 0)
    return formats.read_array_header_1_0(file) if first else formats.read_array_header_2_0(file)
