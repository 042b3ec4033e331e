"""Features of a frozen backbone, computed once, cached on disk and used in place of images."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ssl_toolkit.data.cache import cache_folder
from ssl_toolkit.engine.random_orders import seeded_generator
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.files import write_atomically
from ssl_toolkit.interfaces import AugmentationParams, Augmenter
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.torch_workarounds import keep_freed_memory

Progress = Callable[[int, int], None]
Change = Callable[[Tensor, int, int], Tensor]
"""Maps images, the index of the first of them among all, and the index of a view to that view."""

FORMAT = 1
"""Version of the content of a feature file and of its computation."""


class FeatureExtractor:
    """Computes features of stored images with a backbone in eval mode and float32.

    Args:
        classifier: model whose backbone and channel statistics are used; not changed.
        batch_size: images in a forward pass.
        cached: True to read results from the cache folder and store them there.
        progress: called as ``progress(done, total)``, where the total is that of one call.
    """

    def __init__(
        self,
        classifier: Classifier,
        batch_size: int,
        *,
        cached: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self._classifier = classifier
        self._batch_size = batch_size
        self._cached = cached
        self._progress = progress
        # The batch size changes the last digits, and an exact run must not depend on whether its
        # features were cached.
        self._model = _digest_of_model(classifier) + str(batch_size).encode() if cached else b""

    def plain(self, source: ImageSource, indices: Tensor) -> Tensor:
        """Return features (n, D) of images without augmentation, on the device of the source."""
        return self._lookup(source, indices, lambda images, _start, _view: images, ["plain"])[0]

    def views(
        self, source: ImageSource, indices: Tensor, augmenter: Augmenter, count: int, seed: int
    ) -> Tensor:
        """Return features (count, n, D) of augmented views, on the device of the source.

        View v of the image in row i depends only on the seed, v and i.

        Args:
            source: source of the images.
            indices: (n,) int64 indices into the source.
            augmenter: augmentation of the views.
            count: number of views per image.
            seed: seed of the augmentation.
        """
        if not (count and len(indices)):
            return torch.empty(
                count, len(indices), self._classifier.backbone.feature_dim, device=source.device
            )
        height, width = source.pixels(indices[:1]).shape[-2:]
        draws: dict[int, AugmentationParams] = {}  # of the current view, for all images

        def change(images: Tensor, start: int, view: int) -> Tensor:
            if view not in draws:
                generator = seeded_generator(seed, "features", view)
                draws.clear()
                draws[view] = augmenter.draw(len(indices), height, width, generator)
            stop = start + len(images)
            return augmenter.transform(
                images, {name: drawn[start:stop] for name, drawn in draws[view].items()}
            )

        of = f"{_code(augmenter)} {augmenter.flip} {augmenter.config!r} {seed}"
        return torch.stack(
            self._lookup(source, indices, change, [f"{of} {view}" for view in range(count)])
        )

    def _lookup(
        self,
        source: ImageSource,
        indices: Tensor,
        change: Change,
        names: Sequence[str],
    ) -> list[Tensor]:
        """Return the features of each named view, read from the cache or computed."""
        pixels = _digest_of_pixels(source, indices) if self._cached else b""
        shape = (len(indices), self._classifier.backbone.feature_dim)
        features = []
        for view, name in enumerate(names):
            path = _cache_path(pixels + self._model + name.encode()) if self._cached else None
            if path is not None and (stored := _read(path, shape)) is not None:
                features.append(torch.from_numpy(stored).to(source.device))
                continue
            computed = self._compute(source, indices, change, view)
            if path is not None:
                _write(path, computed.cpu().numpy())
            features.append(computed)
        return features

    @torch.no_grad()
    def _compute(self, source: ImageSource, indices: Tensor, change: Change, view: int) -> Tensor:
        classifier = self._classifier
        training = classifier.training
        classifier.eval()
        keep_freed_memory(source.device)
        features = torch.empty(len(indices), classifier.backbone.feature_dim, device=source.device)
        try:
            for start in range(0, len(indices), self._batch_size):
                if self._progress is not None:
                    self._progress(start, len(indices))
                images = change(
                    source.gather(indices[start : start + self._batch_size]), start, view
                )
                normalized = (images - classifier.mean) / classifier.std
                features[start : start + len(images)] = classifier.backbone(normalized).float()
        finally:
            classifier.train(training)
        if self._progress is not None:
            self._progress(len(indices), len(indices))
        return features


def _digest_of_model(classifier: Classifier) -> bytes:
    """Hash all that features depend on besides the image: weights, code, versions, threads."""
    timm = getattr(sys.modules.get("timm"), "__version__", "")
    versions = f"{FORMAT} {torch.__version__} {timm} {torch.get_num_threads()}"
    device = classifier.mean.device.type
    digest = hashlib.sha256(f"{versions} {device} {_code(classifier.backbone)}".encode())
    state = classifier.backbone.state_dict() | {"mean": classifier.mean, "std": classifier.std}
    for name, tensor in state.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def _code(module: nn.Module) -> str:
    """Describe the computation of a module by its layers and its source code.

    Equal weights don't imply equal features: `tf_` models of timm use other padding than their
    counterparts, and plugins change their computation without renaming anything.
    """
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(module))
    if arguments := getattr(module, "arguments", None):
        text += repr(arguments)  # such as global_pool, which no layer may show
    with contextlib.suppress(OSError, TypeError):  # defined at a prompt
        text += inspect.getsource(sys.modules[type(module).__module__])
    return f"{type(module).__module__}.{type(module).__qualname__} {text}"


def _digest_of_pixels(source: ImageSource, indices: Tensor) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, len(indices), 1024):
        pixels = source.pixels(indices[start : start + 1024]).cpu().numpy()
        digest.update(f"{pixels.shape}".encode())
        digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _cache_path(name: bytes) -> Path | None:
    """Return the path of the features of this name; None if there is no cache folder."""
    try:
        return cache_folder("features") / f"{hashlib.sha256(name).hexdigest()[:32]}.npy"
    except OSError:
        return None


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Read the features in a file; return None if it is missing or corrupt."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            return None
        features = np.load(io.BytesIO(content[:-32]), allow_pickle=False)
    except (OSError, ValueError):
        return None
    if features.shape != shape or features.dtype != np.float32:
        return None
    with contextlib.suppress(OSError):  # update the time of its last use
        os.utime(path)
    return np.array(features)


def _write(path: Path, features: NDArray[np.float32]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, features)
    content = buffer.getvalue()
    with contextlib.suppress(OSError):  # if they are not stored, the next start computes them again
        write_atomically(path, lambda file: file.write(content + hashlib.sha256(content).digest()))
