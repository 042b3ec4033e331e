"""Compute features of images with a pre-trained backbone, for use outside the toolkit."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ssl_toolkit.config.images import Fit, Size, parse_size
from ssl_toolkit.config.settings import Bits, OnBadImage, Settings
from ssl_toolkit.data.cache import Progress
from ssl_toolkit.data.load import pixel_format, read_data
from ssl_toolkit.data.readers.npz import EMBEDDINGS_FORMAT
from ssl_toolkit.engine.devices import choose_device
from ssl_toolkit.engine.features import FeatureExtractor
from ssl_toolkit.engine.training_images import channel_statistics, load_images
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import holds_features, write_bytes
from ssl_toolkit.interfaces import ChannelStatistics, ImageTable
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.factory import build_classifier, own_image_size
from ssl_toolkit.text import display_path, display_text

DEFAULT_SIZE = 224
_IMAGENET: tuple[ChannelStatistics, ChannelStatistics] = (
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)


@dataclass(frozen=True)
class Embeddings:
    """Features of N images."""

    features: NDArray[np.float32]
    """(N, D)."""
    keys: tuple[str, ...]
    """(N,) the name of each image in its data."""
    labels: NDArray[np.int64]
    """(N,) index into `classes`, -1 for an image without a label."""
    classes: tuple[str, ...]
    splits: NDArray[np.str_]
    """(N,) ``pool``, ``labeled``, ``unlabeled``, ``validation`` or ``test``."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` or ``.parquet`` file atomically.

        The arrays of an ``.npz`` have the names of the attributes; ``format`` is the format number.
        A ``.parquet`` file has the columns ``path``, ``label`` (a class or null), ``split`` and
        ``embedding``, and the format number in its metadata.

        Raises:
            ConfigError: The suffix is another one, or pyarrow is missing for ``.parquet``.
            OSError: The file can't be written.
        """
        target, buffer = Path(path), io.BytesIO()
        if target.suffix.lower() == ".parquet":
            _write_parquet(self, buffer)
        elif target.suffix.lower() == ".npz":
            texts = {name: np.array(getattr(self, name), np.str_) for name in ("keys", "classes")}
            np.savez(buffer, format=np.int64(EMBEDDINGS_FORMAT), **vars(self) | texts)
        else:
            raise ConfigError(f"{display_path(target)}: the output must be a .npz or .parquet file")
        write_bytes(target, buffer.getvalue())


def embed(
    data: str | os.PathLike[str],
    *,
    backbone: str,
    weights: str | os.PathLike[str] | None = None,
    image_size: Size | str | None = None,
    channels: int | None = None,
    bits: Bits | None = None,
    fit: Fit = "crop",
    root: str | os.PathLike[str] | None = None,
    on_bad_image: OnBadImage = "error",
    device: str = "auto",
    batch_size: int = 64,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Embeddings:
    """Compute the features of every image of a folder, manifest or archive.

    The features are those of the penultimate layer in eval mode: the input of a linear probe. They
    are cached by the content of the images, the backbone, its weights and the image size.

    Args:
        data: As for ``--data``, or a folder of images without labels.
        backbone: A registered name or any timm model.
        weights: A file with weights, such as ``model/model.safetensors`` of a run, whose
            normalization and ``model.args`` are used too; None for the published ones.
        image_size: Side length in pixels, or (height, width); None for the backbone's, or 224.
        channels: Number of channels; None for 3, or those of arrays.
        bits: Bits of a channel to keep, 8 or 16; None for 8, or those of arrays.
        fit: ``crop`` crops the center square of an image; ``pad`` pads it with white.
        root: Folder that the paths of a manifest are relative to; None for the manifest's.
        on_bad_image: ``error`` refuses unreadable images, ``skip`` leaves them out.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        batch_size: Images in a forward pass.
        workers: Threads that decode images, 0 for none; None for one per processor, at most 8.
        progress: Called while images are decoded.

    Raises:
        UserError: The data, the backbone or its weights are not found or can't be read.
    """
    if holds_features(str(data)):
        raise ConfigError(f"{display_path(Path(data))} holds features already")
    torch_device = choose_device(device)
    workers = min(os.cpu_count() or 1, 8) if workers is None else workers
    size = parse_size(image_size) or own_image_size(backbone) or DEFAULT_SIZE
    table = read_data(
        Path(data),
        pixels=pixel_format(Settings(data=str(data), channels=channels, bits=bits)),
        root=None if root is None else Path(root),
        on_bad_image=on_bad_image,
        workers=workers,
        size=size,
        fit=fit,
        unlabeled=True,
        progress=progress,
    )
    features = embed_table(
        table,
        np.arange(len(table.keys)),
        backbone=backbone,
        weights=weights,
        image_size=size,
        device=torch_device,
        batch_size=batch_size,
        progress=progress,
    )
    return Embeddings(features, tuple(table.keys), table.labels, table.classes, table.splits)


def embed_table(
    table: ImageTable,
    rows: NDArray[np.int64],
    *,
    backbone: str,
    weights: str | os.PathLike[str] | None,
    image_size: Size,
    device: torch.device,
    batch_size: int,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Return the features (n, D) of images of a table, see `embed`; cached ones are read.

    Args:
        table: Table of the images.
        rows: (n,) rows of the table.
        backbone: As for `embed`.
        weights: As for `embed`.
        image_size: Side length in pixels.
        device: Device that computes.
        batch_size: Images in a forward pass.
        progress: Called while images are decoded.
    """
    mean, std = _IMAGENET
    if table.pixels.channels != len(mean):
        images = load_images(table, rows, image_size, device, progress)
        mean, std = channel_statistics((images, torch.arange(len(rows))))
    config: dict[str, Any] = {}
    if weights is not None:
        # A model of a run was trained with its own normalization and arguments, in this file.
        folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
        with contextlib.suppress(OSError, ValueError, TypeError):
            config |= json.loads((folder / "config.json").read_text("utf-8"))
    own = str(config.get("backbone")).removeprefix("timm:") == backbone.removeprefix("timm:")
    classifier, _ = build_classifier(
        backbone,
        max(2, len(table.classes)),
        image_size=image_size,
        dataset_mean=mean,
        dataset_std=std,
        seed=0,
        pretrained=weights is None,
        weights=None if weights is None else Path(weights),
        channels_last=True,
        arguments=config.get("arguments") if own else None,
    )
    with contextlib.suppress(ValueError, LookupError, TypeError):
        if len(config["mean"]) == len(config["std"]) == len(mean):
            classifier.set_statistics(config["mean"], config["std"])
    return network_features(
        classifier.to(device), table, rows, image_size, device, batch_size, progress
    )


def network_features(
    classifier: Classifier,
    table: ImageTable,
    rows: NDArray[np.int64],
    image_size: Size,
    device: torch.device,
    batch_size: int,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Return the features (n, D) of images of a table by a network; cached ones are read.

    Args:
        classifier: Network, on the device.
        table: Table of the images.
        rows: (n,) rows of the table.
        image_size: Side length in pixels.
        device: Device that computes.
        batch_size: Images in a forward pass.
        progress: Called while images are decoded.
    """
    images = load_images(table, rows, image_size, device, progress)
    features = FeatureExtractor(classifier, batch_size).plain(images, torch.arange(len(rows)))
    array: NDArray[np.float32] = features.cpu().numpy()
    return array


def _write_parquet(embeddings: Embeddings, buffer: io.BytesIO) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            "writing .parquet needs pyarrow: pip install 'ssl-toolkit[hf]', or choose .npz"
        ) from error
    size = embeddings.features.shape[1]
    values = pa.array(embeddings.features.reshape(-1), pa.float32())
    names = [*embeddings.classes, None]  # the last one for label -1
    labels = [names[label] for label in embeddings.labels.tolist()]
    table = pa.table(
        {
            "path": pa.array([display_text(key) for key in embeddings.keys], pa.string()),
            "label": pa.array(labels, pa.string()),
            "split": pa.array(embeddings.splits.tolist(), pa.string()),
            "embedding": pa.FixedSizeListArray.from_arrays(values, size),
        },
        metadata={"format": str(EMBEDDINGS_FORMAT)},
    )
    pq.write_table(table, buffer)
