"""Features of a frozen backbone: computed once, kept on disk, and drawn from in place of images."""

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

from ssl_toolkit.data.cache.decoded_images import cache_folder
from ssl_toolkit.engine.batches import seeded_generator
from ssl_toolkit.engine.training_images import ImageSource
from ssl_toolkit.files import write_atomically
from ssl_toolkit.interfaces import AugmentationParams, Augmenter
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.torch_workarounds import keep_freed_memory

Progress = Callable[[int, int], None]
Change = Callable[[Tensor, int, int], Tensor]
"""Images, the place of the first of them among all, and the number of the view, to the view."""

FORMAT = 1
"""Changes when what a file of features holds, or how it is computed, changes."""


class FeatureExtractor:
    """Features of stored images, from a backbone in eval mode and float32.

    Args:
        classifier: whose backbone and channel statistics are used; left as they are.
        batch_size: images in a forward.
        cached: whether results are kept in the folder of caches and taken from there.
        progress: called as ``progress(done, total)``, total being that of one call.
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
        # The size of a batch changes the last digits, and an exact run must not depend on whether
        # the features were there.
        self._model = _digest_of_model(classifier) + str(batch_size).encode() if cached else b""

    def plain(self, source: ImageSource, indices: Tensor) -> Tensor:
        """Features of images without augmentation, (n, D), on the device of the source."""
        return self._kept(source, indices, lambda images, _start, _view: images, ["plain"])[0]

    def views(
        self, source: ImageSource, indices: Tensor, augmenter: Augmenter, count: int, seed: int
    ) -> Tensor:
        """Features of augmented views, (count, n, D), on the device of the source.

        View v of the image in row i depends on the seed, v and i alone.

        Args:
            source: where the images are.
            indices: (n,) int64 indices of the source.
            augmenter: changes the images.
            count: views of each image.
            seed: of the draws.
        """
        if not (count and len(indices)):
            return torch.empty(
                count, len(indices), self._classifier.backbone.feature_dim, device=source.device
            )
        height, width = source.pixels(indices[:1]).shape[-2:]
        draws: dict[int, AugmentationParams] = {}  # of the view that is computed, for all images

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
            self._kept(source, indices, change, [f"{of} {view}" for view in range(count)])
        )

    def _kept(
        self,
        source: ImageSource,
        indices: Tensor,
        change: Change,
        names: Sequence[str],
    ) -> list[Tensor]:
        """Features from the cache or computed, for the views of these names."""
        pixels = _digest_of_pixels(source, indices) if self._cached else b""
        shape = (len(indices), self._classifier.backbone.feature_dim)
        found = []
        for view, name in enumerate(names):
            path = _place(pixels + self._model + name.encode()) if self._cached else None
            if path is not None and (kept := _read(path, shape)) is not None:
                found.append(torch.from_numpy(kept).to(source.device))
                continue
            computed = self._computed(source, indices, change, view)
            if path is not None:
                _write(path, computed.cpu().numpy())
            found.append(computed)
        return found

    @torch.no_grad()
    def _computed(self, source: ImageSource, indices: Tensor, change: Change, view: int) -> Tensor:
        classifier = self._classifier
        training = classifier.training
        classifier.eval()
        keep_freed_memory(source.device)
        found = torch.empty(len(indices), classifier.backbone.feature_dim, device=source.device)
        try:
            for start in range(0, len(indices), self._batch_size):
                if self._progress is not None:
                    self._progress(start, len(indices))
                images = change(
                    source.gather(indices[start : start + self._batch_size]), start, view
                )
                normalized = (images - classifier.mean) / classifier.std
                found[start : start + len(images)] = classifier.backbone(normalized).float()
        finally:
            classifier.train(training)
        if self._progress is not None:
            self._progress(len(indices), len(indices))
        return found


def _digest_of_model(classifier: Classifier) -> bytes:
    """Hash of all that a feature depends on beside the image: weights, code, versions, threads."""
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
    """Describe the computation of a module: its layers, and the text of its code.

    Equal weights don't make equal features: `tf_` models of timm pad otherwise than their twins,
    and the author of a plugin changes its computation under the same names.
    """
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(module))
    with contextlib.suppress(OSError, TypeError):  # typed in at a prompt
        text += inspect.getsource(sys.modules[type(module).__module__])
    return f"{type(module).__module__}.{type(module).__qualname__} {text}"


def _digest_of_pixels(source: ImageSource, indices: Tensor) -> bytes:
    digest = hashlib.sha256()
    for start in range(0, len(indices), 1024):
        pixels = source.pixels(indices[start : start + 1024]).cpu().numpy()
        digest.update(f"{pixels.shape}".encode())
        digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _place(name: bytes) -> Path | None:
    """Where the features of this name are kept; None where there is no folder for them."""
    try:
        return cache_folder("features") / f"{hashlib.sha256(name).hexdigest()[:32]}.npy"
    except OSError:
        return None


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """The features in a file; None where there is none, or where it is damaged."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            return None
        found = np.load(io.BytesIO(content[:-32]), allow_pickle=False)
    except (OSError, ValueError):
        return None
    if found.shape != shape or found.dtype != np.float32:
        return None
    with contextlib.suppress(OSError):  # the time of its last use
        os.utime(path)
    return np.array(found)


def _write(path: Path, features: NDArray[np.float32]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, features)
    content = buffer.getvalue()
    with contextlib.suppress(OSError):  # without them the next start computes them again
        write_atomically(path, lambda file: file.write(content + hashlib.sha256(content).digest()))
