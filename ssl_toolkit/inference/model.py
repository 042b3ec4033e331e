"""Load a trained classifier from its folder, and apply it to images of any type."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_toolkit.config.images import Fit, PixelFormat, Size, parse_size, sides
from ssl_toolkit.data.images.files import pillow_muted
from ssl_toolkit.data.images.inputs import (
    ImageInput,
    Pixels,
    as_list,
    name_of,
    to_float01,
    to_pixels,
)
from ssl_toolkit.engine.devices import choose_device
from ssl_toolkit.engine.training_images import to_unit
from ssl_toolkit.errors import DataError, ModelError
from ssl_toolkit.files import at_home
from ssl_toolkit.inference.prior import Prior, make_adjustment
from ssl_toolkit.inference.reported import from_checkpoint
from ssl_toolkit.interfaces import Task
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.export import load_exported
from ssl_toolkit.models.feature_input import feature_length
from ssl_toolkit.models.heads import FeatureHead, Neighbors
from ssl_toolkit.models.known_scores import ACCEPTED, LEAST, KnownScores
from ssl_toolkit.models.predictor import Predictor
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path

LEAST_AHEAD = 64
"""Minimum of images decoded ahead of the forward pass, to keep threads busy on small batches."""


class Scored(NamedTuple):
    """The prediction for an image."""

    probabilities: NDArray[np.float32]
    """(C,) probabilities."""
    stranger_score: float
    """The larger, the less the image belongs to any class; see `Model.stranger_scores`."""


@dataclass(eq=False, repr=False)
class Model:
    """A trained classifier that maps images to probabilities; see `load_model`."""

    classifier: Classifier
    """Backbone and head with the weights that the run reports, in eval mode; normalizes images."""
    _: KW_ONLY
    classes: tuple[str, ...]
    """C names in the order of the probabilities."""
    image_size: Size
    """Side length of the training images in pixels, or (height, width); `predict` resizes every
    image to it."""
    backbone: str
    """Name of the backbone."""
    device: torch.device
    """Device of the weights."""
    fit: Fit = "crop"
    """How images get the image size, as in training: ``crop`` or ``pad``."""
    bits: int = 8
    """Bits of a channel that are kept of image files, as in training: 8 or 16."""
    thresholds: tuple[float, ...] = ()
    """C probabilities from which on an image has a class, under ``--task multilabel``; else
    empty."""
    predictor: Predictor | None = None
    """The classifier with the methods of the run's algorithm that it needs; None for none."""
    folder: Path | None = None
    """The folder that the model was loaded from."""
    known_scores: KnownScores | None = None
    """Stranger scores of images of the classes, for `stranger_limit`; None if there are none."""

    @property
    def task(self) -> Task:
        """The task of the run: ``multiclass`` or ``multilabel``."""
        return self.classifier.task

    def require_one_class(self, what: str) -> None:
        """Refuse a model of ``--task multilabel``.

        Args:
            what: Start of the message: what needs one class per image.

        Raises:
            ModelError: The model predicts any number of classes.
        """
        if self.task == "multilabel":
            raise ModelError(f"{what} needs a model with one class per image (--task multiclass)")

    def has_classes(self, probabilities: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """Return (N, C) which classes images have, under ``--task multilabel``.

        Args:
            probabilities: (N, C), as of `predict`.
        """
        result: NDArray[np.bool_] = probabilities.astype(np.float64) >= np.array(self.thresholds)
        return result

    def __post_init__(self) -> None:
        if self.task == "multilabel" and not self.thresholds:
            self.thresholds = (0.5,) * len(self.classes)
        # The memory layout of runs, and of decoded images.
        self._network = self.classifier if self.predictor is None else self.predictor
        self._network.to(self.device).to(memory_format=torch.channels_last).eval()

    @property
    def pixels(self) -> PixelFormat:
        """Channels and bits of the training images."""
        return PixelFormat(self.classifier.channels, self.bits)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the probabilities of images of size `image_size`, without gradients.

        Args:
            images: (N, C, H, W) float in [0, 1], RGB if C is 3, not normalized; on any device.
                (N, D) float for a model that was trained on features.

        Returns:
            (N, C) float32 on the model's device; rows sum to 1, but not under
            ``--task multilabel``.

        Raises:
            DataError: Another shape or dtype.
        """
        return self._evaluate(self._checked(images))[0]

    def _checked(self, images: Tensor) -> Tensor:
        """Return images or features as float32 on the model's device; refuse another shape."""
        length = feature_length(self.backbone)
        shape = (self.pixels.channels, *sides(self.image_size)) if length is None else (length,)
        if images.shape[1:] != shape or not images.is_floating_point():
            expected = f"the model takes features (N, {length}) float"
            if length is None:
                wanted = ", ".join(map(str, shape))
                expected = f"images must be (N, {wanted}) float in [0, 1] (see predict)"
            raise DataError(f"{expected}, got {tuple(images.shape)} {images.dtype}")
        return images.to(self.device, torch.float32)

    def predict(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        batch_size: int = 64,
        workers: int | None = None,
        prior: Prior | None = None,
    ) -> NDArray[np.float32]:
        """Return the probabilities of images of any size, prepared as in training and evaluation.

        Files and Pillow images are rotated and converted as in training. Images of another size
        than in training are scaled and made square.

        Args:
            images: One image or several: paths, Pillow images, arrays (H, W, C) or
                (H, W), tensors (C, H, W); or a stack: an array (N, H, W, C) or (N, H, W), a tensor
                (N, C, H, W) or (N, H, W). Arrays and tensors have the channels of the training
                images, or are gray if these are RGB, as uint8, uint16 or float in [0, 1]; an
                array (H, W, C) and a tensor (C, H, W) are one image. For a
                model that was trained on features, an array or tensor (N, D).
            batch_size: Images per forward pass; changes speed and memory, not the result.
            workers: Threads that decode images, 0 for none; None for one per processor, at most
                8.
            prior: Class shares of these images, to which the probabilities are adjusted: by class
                name, the path to a file of them, or ``estimate`` to estimate them.

        Returns:
            (N, C) float32; rows sum to 1. The most probable class of image i is
            ``model.classes[probabilities[i].argmax()]``. Under ``--task multilabel``, each column
            is the probability that an image has the class; see `has_classes`.

        Raises:
            DataError: Some images can't be read; one message per image. Or the prior is wrong.
        """
        if prior is not None:
            adjustment = make_adjustment(prior, self.folder, self.classes, self.task)
            return adjustment.apply(self.predict(images, batch_size=batch_size, workers=workers))[0]
        return self._evaluate_all(images, batch_size, workers)[0]

    def stranger_scores(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        batch_size: int = 64,
        workers: int | None = None,
    ) -> NDArray[np.float32]:
        """Return how little images belong to any class: `Algorithm.stranger_scores`, or energies.

        Args:
            images: As for `predict`.
            batch_size: As for `predict`.
            workers: As for `predict`.

        Returns:
            (N,) float32; images with a score above `stranger_limit` are rejected.

        Raises:
            DataError: Some images can't be read.
            ModelError: The model has no scores, see `require_stranger_scores`.
        """
        self.require_stranger_scores()
        return self._evaluate_all(images, batch_size, workers)[1]

    def stranger_limit(self, accepted: float = ACCEPTED) -> float:
        """Return the stranger score that this share of the images of the classes doesn't exceed.

        Args:
            accepted: Share in (0, 1] of the validation images or, with fewer than 50 of them, of
                the unlabeled images of the training.

        Raises:
            ModelError: The model has neither, or see `require_stranger_scores`.
        """
        self.require_stranger_scores()
        if self.known_scores is None:
            where = "the model" if self.folder is None else display_path(self.folder)
            raise ModelError(
                f"{where} has no limit of the score of strangers: its run is not finished, of an "
                f"earlier version, or had fewer than {LEAST} validation and {LEAST} unlabeled "
                "images; choose a limit by the column stranger_score: --reject-above inf"
            )
        return self.known_scores.limit(accepted)

    def require_stranger_scores(self) -> None:
        """Refuse a model without stranger scores.

        Raises:
            ModelError: The model is of ``--task multilabel``, or neighbors vote.
        """
        self.require_one_class("--reject")
        head = self.classifier.head
        if isinstance(head, FeatureHead) and isinstance(head.predictor, Neighbors):
            raise ModelError(
                "--reject: the model predicts by votes of neighbors (knn, label_spreading), which "
                "do not show images of no class; train a linear_probe or graph_probe"
            )

    def _evaluate_all(
        self, images: ImageInput | Iterable[ImageInput], batch_size: int, workers: int | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return probabilities (N, C) and stranger scores (N,)."""
        if feature_length(self.backbone) is not None:
            if not isinstance(images, np.ndarray | Tensor):
                kind = type(images).__name__
                raise DataError(f"the model takes features, an array or a tensor, got a {kind}")
            features = images if isinstance(images, Tensor) else torch.tensor(images)
            parts = [
                self._evaluate(self._checked(part.float()))
                for part in torch.split(features, batch_size)
            ]
            joined = [torch.cat(each).cpu().numpy() for each in zip(*parts, strict=True)]
            return joined[0], joined[1]
        inputs = as_list(images, self.pixels.channels)
        result = np.empty((len(inputs), len(self.classes)), dtype=np.float32)
        scores = np.empty(len(inputs), dtype=np.float32)
        faults = []
        for index, row in enumerate(self.scored(inputs, batch_size=batch_size, workers=workers)):
            if isinstance(row, str):
                faults.append(f"can't read image {name_of(inputs[index], index)}: {row}")
            else:
                result[index], scores[index] = row
        if faults:
            raise DataError(faults)
        return result, scores

    def stream(
        self, images: Iterable[ImageInput], *, batch_size: int = 64, workers: int | None = None
    ) -> Iterator[NDArray[np.float32] | str]:
        """Yield the results of `predict` image by image, in order, in constant memory.

        Args:
            images: Several images, as for `predict`.
            batch_size: As for `predict`, at least 1.
            workers: As for `predict`.

        Yields:
            The image's (C,) float32 probabilities, or the reason why it can't be read.
        """
        rows = self.scored(images, batch_size=batch_size, workers=workers)
        return (row if isinstance(row, str) else row.probabilities for row in rows)

    def scored(
        self, images: Iterable[ImageInput], *, batch_size: int = 64, workers: int | None = None
    ) -> Iterator[Scored | str]:
        """Yield the results of `stream` together with the score of strangers.

        Args:
            images: As for `stream`.
            batch_size: As for `stream`.
            workers: As for `stream`.
        """
        threads = min(os.cpu_count() or 1, 8) if workers is None else workers
        with closing(self._decoded(images, threads, max(LEAST_AHEAD, 2 * batch_size))) as decoded:
            while group := list(islice(decoded, batch_size)):
                good = [pixels for pixels in group if not isinstance(pixels, str)]
                rows = iter(self._forward(good)) if good else iter(())
                yield from (p if isinstance(p, str) else next(rows) for p in group)

    def _decoded(
        self, images: Iterable[ImageInput], threads: int, ahead: int
    ) -> Generator[Pixels | str, None, None]:
        size, fit, form = self.image_size, self.fit, self.pixels
        if feature_length(self.backbone) is not None:
            raise ModelError(f"the model ({self.backbone}) takes features, not images")
        with pillow_muted():
            if threads < 1:
                yield from (to_pixels(image, size, fit, form) for image in images)
                return
            pool = ThreadPoolExecutor(threads)
            waiting: deque[Future[Pixels | str]] = deque()
            try:
                for image in images:
                    waiting.append(pool.submit(to_pixels, image, size, fit, form))
                    if len(waiting) > ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _forward(self, decoded: Sequence[Pixels]) -> list[Scored]:
        if len({image.dtype for image in decoded}) > 1:
            decoded = [to_float01(image) for image in decoded]
        pixels = torch.from_numpy(np.stack(decoded)).to(self.device).permute(0, 3, 1, 2)
        # The operations of a run's image store, for identical floats.
        images = pixels if pixels.is_floating_point() else to_unit(pixels)
        probabilities, scores = (each.cpu() for each in self._evaluate(images))
        return [*map(Scored, probabilities.numpy(), scores.tolist())]

    @torch.no_grad()
    def _evaluate(self, images: Tensor) -> tuple[Tensor, Tensor]:
        output = self._network(images)
        scores = self._network.stranger_scores(output).float()
        return self._network.probabilities(output.logits), scores


def load_model(path: str | os.PathLike[str], device: str = "auto") -> Model:
    """Load a trained model, without its data and on any device.

    Args:
        path: The folder of a run, or of an exported model (the ``model/`` of a run, or a copy).
            An unfinished run has the weights with the best validation accuracy so far or, without
            validation, the averaged weights of its last checkpoint.
        device: ``auto`` (a GPU if available), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Returns:
        The model, with its classes, image size and normalization.

    Raises:
        ModelError: The folder is not found or has no model, a file is damaged, or there is no such
            device.
        PluginError: The package of the backbone, or of an algorithm with a `predict`, is not
            installed.
    """
    classifier: Classifier | Predictor
    source, torch_device = at_home(path), choose_device(device)
    folder = RunFolder(source)
    checkpoint = folder.best if folder.best.exists() else folder.last
    exported = source if (source / "config.json").is_file() else folder.model
    if exported.is_dir():
        classifier, config = load_exported(exported)
    elif checkpoint.exists():
        classifier, config = from_checkpoint(checkpoint)
    else:
        kind = "no such folder" if not source.exists() else "neither a run nor an exported model"
        raise ModelError(
            f"{display_path(source)}: {kind}; give the folder of a run (it holds model/ or "
            "checkpoints/) or an exported one (it holds config.json and model.safetensors)"
        )
    predictor = classifier if isinstance(classifier, Predictor) else None
    known = config.get("known_scores")
    return Model(
        classifier.classifier if isinstance(classifier, Predictor) else classifier,
        predictor=predictor,
        classes=tuple(config["classes"]),
        image_size=parse_size(config["image_size"]),
        backbone=config["backbone"],
        device=torch_device,
        fit=config["fit"],
        bits=config.get("bits", 8),
        folder=source,
        thresholds=tuple(config.get("thresholds") or ()),
        known_scores=KnownScores.parse(known, display_path(exported)) if known else None,
    )
