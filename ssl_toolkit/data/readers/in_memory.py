"""Write images and labels in memory to a data file, from which a run reads them.

The file is next to the run folder, named by a digest of its content. Arrays of one shape and
features are written as ``.npz``, paths as a manifest, without copying the files, and anything else
as ``.tar`` shards, with one image in memory at a time. Their members are PNG files, or what
``np.save`` writes of images that are no 8-bit gray or RGB: readers go by the content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ssl_toolkit.config.images import RGB8, PixelFormat
from ssl_toolkit.data.images.decoding import Unreadable
from ssl_toolkit.data.images.files import IMAGE_SUFFIXES
from ssl_toolkit.data.images.inputs import ImageInput, channels_last
from ssl_toolkit.data.images.levels import convert_bits, to_levels
from ssl_toolkit.data.label_values import label_name, label_names, label_numbers, sorted_classes
from ssl_toolkit.data.readers.npz import as_levels, checked_stack
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import sync

Images = NDArray[Any] | Tensor | Sequence[ImageInput] | Dataset[Any]
"""A stack (N, H, W, C), (N, H, W) or a tensor (N, C, H, W); features (N, D); a sequence of paths,
Pillow images, arrays and tensors; or a map-style torch data set of images or of pairs
(image, label)."""

Labels = NDArray[Any] | Tensor | Sequence[int | str | None]
"""(N,) see `label_names`."""

LabeledImages = tuple[Images, Labels] | Dataset[Any]
"""A pair, or a data set of pairs."""

_BLOCK = 2**24  # values


@dataclass(frozen=True)
class DataFile:
    """A data file, as `write_data` returns it."""

    path: Path
    classes: tuple[str, ...]
    root: Path | None = None
    """The folder that the paths of a manifest are relative to."""


@dataclass(frozen=True)
class _Part:
    """The images of one argument."""

    name: str
    """Name of the argument, for messages."""
    split: str
    """Split, as a manifest names it."""
    images: Any
    """A stack (features or images, channels last), a data set or a list."""
    labels: list[str] | None
    """Class names, empty for no label; None takes the labels from the data set."""

    def __len__(self) -> int:
        return len(self.images)

    def items(self) -> Iterator[tuple[ImageInput, str]]:
        """Yield images and labels, one at a time."""
        for i in range(len(self)):
            item, label = self.images[i], ""
            if isinstance(item, tuple):
                item, value = item
                label = label_name(value, self.name)
            yield item, label if self.labels is None else self.labels[i]


def write_data(
    folder: Path,
    images: Images,
    labels: Labels | None = None,
    *,
    unlabeled: Images | None = None,
    validation: LabeledImages | None = None,
    test: LabeledImages | None = None,
    form: PixelFormat = RGB8,
) -> DataFile:
    """Write images and labels into a folder, for ``data`` of a configuration.

    Args:
        folder: Path to the folder, which is created if it doesn't exist.
        images: See `Images`; images without a label are added to the unlabeled ones.
        labels: (N,) see `label_names`; None for a data set of pairs.
        unlabeled: More images, without labels.
        validation: A pair (images, labels), or a data set of pairs.
        test: As `validation`; not used for training.
        form: Channels that images in a list have, unless they are gray, and bits that are kept of
            floats and Pillow images.

    Raises:
        DataError: Unsupported images or labels; the message has the argument, shape and dtype.
        OSError: The folder can't be written.
    """
    parts = [_part("images", "train", images, labels)]
    if unlabeled is not None:
        part = _part("unlabeled", "unlabeled", unlabeled, None)
        parts.append(replace(part, labels=[""] * len(part)))
    for name, split, argument in (("validation", "val", validation), ("test", "test", test)):
        if argument is not None:
            is_pair = isinstance(argument, tuple) and len(argument) == 2
            parts.append(_part(name, split, *(argument if is_pair else (argument, None))))  # type: ignore[misc]
    stacks = [part.images for part in parts if isinstance(part.images, np.ndarray)]
    shapes = {stack.shape[1:] for stack in stacks}
    if len(stacks) == len(parts) and len(shapes) == 1:
        suffix, write = ".npz", partial(_write_arrays, bits=form.bits)
    elif any(len(shape) == 1 for shape in shapes):
        message = ", ".join(f"{part.name} {_describe(part.images)}" for part in parts)
        raise DataError(f"features are (N, D) of one length D in all arguments, got {message}")
    elif all(isinstance(part.images, list) and _are_paths(part.images) for part in parts):
        suffix, write = ".jsonl", partial(_write_manifest)
    else:
        suffix, write = "", partial(_write_shards, form=form)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".given-", dir=folder) as scratch:
        temporary = Path(scratch, f"data{suffix}")
        result = write(temporary, parts)
        target = folder / f"given-{_digest(temporary)}{suffix}"
        if not target.exists():
            os.replace(temporary, target)
    return replace(result, path=target)


def _part(name: str, split: str, images: Any, labels: Any) -> _Part:
    if isinstance(images, Tensor):
        images = channels_last(images, 4)
    if isinstance(images, str | os.PathLike | Image.Image | Mapping):
        raise DataError(f"{name}: expected several images, got one {type(images).__name__}")
    if isinstance(images, Dataset):
        if not hasattr(images, "__len__"):
            raise DataError(f"{name}: a data set must be map-style, with a length")
    elif not isinstance(images, np.ndarray) or images.dtype.kind in "OUS":
        images = list(images)
    elif images.ndim == 2:
        if images.dtype.kind not in "fiu":
            raise DataError(f"{name}: features are (N, D) numbers, got {_describe(images)}")
    else:
        images = checked_stack(images, name)
    if not len(images):
        raise DataError(f"{name}: there are no images")
    names = None if labels is None else label_names(labels, len(images), f"labels of {name}")
    if names is None and not isinstance(images, Dataset):
        names = [""] * len(images)
    return _Part(name, split, images, names)


def _describe(images: Any) -> str:
    """Describe an argument without its values."""
    if isinstance(images, np.ndarray):
        return f"{images.shape} {images.dtype}"
    return f"{len(images)} in a {type(images).__name__}"


def _are_paths(images: Sequence[Any]) -> bool:
    return all(isinstance(image, str | os.PathLike) for image in images)


def _write_arrays(path: Path, parts: Sequence[_Part], bits: int = 8) -> DataFile:
    """Write one stack of all parts, block by block, for `npz.read_npz`."""
    names = [label for part in parts for label in part.labels or ()]
    classes = sorted_classes(names)
    shape, of_images = parts[0].images.shape[1:], parts[0].images.ndim > 2
    deep = of_images and (bits == 16 or any(part.images.dtype == np.uint16 for part in parts))
    form = PixelFormat(bits=16 if deep else 8)
    header = {
        "descr": ("<u2" if deep else "|u1") if of_images else "<f4",
        "fortran_order": False,
        "shape": (len(names), *shape),
    }
    step = max(1, _BLOCK // int(np.prod(shape)))
    arrays: dict[str, NDArray[Any]] = {
        "labels": label_numbers(names, classes),
        "splits": np.array([part.split for part in parts for _ in range(len(part))]),
        "classes": np.array(classes, dtype=np.str_),
    }
    with zipfile.ZipFile(path, "w") as archive:
        # A ZipInfo, because a name would add the time, and the digest would differ.
        member = zipfile.ZipInfo("images.npy" if of_images else "features.npy")
        with archive.open(member, "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            for part in parts:
                for start in range(0, len(part), step):
                    block = part.images[start : start + step]
                    if of_images:
                        block = convert_bits(as_levels(block, part.name, form.bits), form)
                    else:
                        block = block.astype("<f4")
                    file.write(block.tobytes())
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as file:
                np.lib.format.write_array(file, array)
    sync(path)
    return DataFile(path, classes)


def _write_manifest(path: Path, parts: Sequence[_Part]) -> DataFile:
    """Write a line for each path, without copying the files."""
    rows = [
        (os.path.abspath(str(image)), label, part.split)
        for part in parts
        for image, label in part.items()
    ]
    root = os.path.commonpath([os.path.dirname(image) for image, _, _ in rows])
    with path.open("w", encoding="utf-8") as file:
        for image, label, split in rows:
            row = {"path": os.path.relpath(image, root), "label": label or None, "split": split}
            file.write(json.dumps(row) + "\n")
    sync(path)
    return DataFile(path, sorted_classes(label for _, label, _ in rows), Path(root))


def _write_shards(path: Path, parts: Sequence[_Part], form: PixelFormat) -> DataFile:
    """Write a tar file for each part, with each image and its label."""
    path.mkdir()
    names = set()
    for part in parts:
        shard = path / f"{part.split}.tar"
        with tarfile.open(shard, "w") as archive:
            for number, (image, label) in enumerate(part.items()):
                content, suffix = _encode(image, f"{part.name} number {number}", form)
                _add(archive, f"{number:08d}{suffix}", content)
                if label:
                    _add(archive, f"{number:08d}.cls", label.encode())
                names.add(label)
        sync(shard)
    return DataFile(path, sorted_classes(names))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    archive.addfile(header, io.BytesIO(content))
    archive.members = []  # type: ignore[attr-defined]  # or tarfile keeps all headers in memory


def _encode(image: Any, where: str, form: PixelFormat) -> tuple[bytes, str]:
    """Encode an image losslessly; return the bytes of the file and its suffix."""
    try:
        if isinstance(image, str | os.PathLike):
            suffix = Path(image).suffix.lower()
            return Path(image).read_bytes(), suffix if suffix in IMAGE_SUFFIXES else ".png"
        if isinstance(image, Tensor):
            image = channels_last(image, 3)
        if isinstance(image, np.ndarray):
            levels = as_levels(image[None], where, form.bits)[0]
            given = 1 if levels.ndim == 2 else levels.shape[2]
            if given != form.channels and not {given, form.channels} <= {1, 3}:
                raise DataError(
                    f"{where}: images are (H, W, {form.channels}) or (H, W), got "
                    f"{tuple(image.shape)} {image.dtype}; set channels to their number"
                )
        elif isinstance(image, Image.Image):
            levels = to_levels(image, form)
        else:
            kind = type(image).__name__
            raise DataError(f"{where}: expected a path, an image, an array or a tensor, got {kind}")
        buffer = io.BytesIO()
        if levels.dtype == np.uint8 and levels.shape[2:] in ((), (3,)):
            Image.fromarray(levels).save(buffer, "PNG", compress_level=1)
        else:
            np.save(buffer, levels)
    except (OSError, Unreadable) as error:
        raise DataError(f"{where}: can't read the image: {error}") from None
    return buffer.getvalue(), ".png"


def _digest(path: Path) -> str:
    """Return the digest of a file, or of the files of a folder by name."""
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]
