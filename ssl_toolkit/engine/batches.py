"""The random batches of a run: which images, in which order, under which augmentations.

Everything random here is a pure function of (seed, batch number): a resumed run and every
algorithm of a comparison see the same images in the same order under the same draws.

Algorithms with different numbers of unlabeled images per batch share as much as that allows. Batch
t contains positions t·U to (t+1)·U - 1 of one endless order, which depends on the seed and the pool
alone; row i of a view's draws depends on the seed, t, the kind of the view, its number and i, not
on U. So the labeled part is equal in every batch. A larger U runs through the same order faster,
and the first rows of a view have equal draws in every batch, though after the first batch for other
images.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit.augment.weak import NoAugmentation
from ssl_toolkit.config.images import Size, sides
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.look_ahead import LookAhead
from ssl_toolkit.engine.random_orders import BalancedStream, IndexStream, seeded_generator
from ssl_toolkit.engine.streaming import Order
from ssl_toolkit.engine.training_images import (
    FeatureViews,
    TrainingImages,
    channel_statistics,
)
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces import (
    AugmentationParams,
    Augmenter,
    Batch,
    ChannelStatistics,
    View,
    Views,
)
from ssl_toolkit.interfaces.results import check_tensor

_POSITIONS = 256  # of an order, and
_BATCHES = 3  # of draws, that a digest covers
_COUNTED = 2000
"""Streamed images from which channel statistics are computed."""


def unlabeled_stream(images: TrainingImages, seed: int) -> IndexStream:
    """Return the order in which a run draws the unlabeled images."""
    return IndexStream(len(images.unlabeled), seed, _stream("unlabeled"), images.order)


def training_statistics(
    images: TrainingImages, seed: int
) -> tuple[ChannelStatistics, ChannelStatistics]:
    """Return channel statistics of all training images; of streamed ones, of the first 2,000."""
    if images.streamed is None:
        indices = torch.unique(torch.cat([images.labeled, images.unlabeled]))
        return channel_statistics((images.loaded, indices.cpu()))
    first = unlabeled_stream(images, seed).take(0, min(_COUNTED, len(images.unlabeled)))
    return channel_statistics((images.loaded, images.labeled.cpu()), (images.streamed, first))


class BatchMaker:
    """Draws the batch of any number, in any order.

    Processes that share a run draw the same; each reads and augments only its own part of it.

    Args:
        images: images of the run.
        views: views that the algorithm needs.
        augmenters: augmenters of the views by name: ``weak``, ``strong``, and those of the
            algorithm.
        batch_size: B, labeled images in a batch.
        seed: seed of the run.
        balanced: True to draw labeled images with equal class frequencies.
        uses_hidden_labels: True to pass the hidden labels in batches.
        processes: the processes that share each batch, whose sizes they divide; None for this one.
    """

    def __init__(
        self,
        images: TrainingImages,
        views: Views,
        augmenters: Mapping[str, Augmenter],
        *,
        batch_size: int,
        seed: int,
        balanced: bool = False,
        uses_hidden_labels: bool = False,
        processes: ProcessGroup | None = None,
    ) -> None:
        self.images = images
        self.views = views
        self.augmenters: dict[str, Augmenter] = {"plain": NoAugmentation(), **augmenters}
        self._seed = seed
        self._labeled_size = batch_size
        self._unlabeled_size = batch_size * views.unlabeled_ratio if views.needs_unlabeled else 0
        self._uses_hidden_labels = uses_hidden_labels
        self.pool_mask: Tensor = torch.ones_like(images.unlabeled, dtype=torch.bool)
        """(unlabeled images,) bool: False for images that are not drawn."""
        self._processes = processes or ProcessGroup()
        self._labeled = (
            BalancedStream(images.labels.cpu(), seed, _stream("labeled"))
            if balanced
            else IndexStream(len(images.labels), seed, _stream("labeled"))
        )
        if self._unlabeled_size:
            self._unlabeled = unlabeled_stream(images, seed)
        self._look_ahead: LookAhead | None = None

    @contextmanager
    def reading_ahead(self, batches: int) -> Iterator[None]:
        """Within the context, decode the streamed images of the next batch during a step.

        Args:
            batches: Batches of the run; nothing is read beyond.
        """
        if self.images.streamed is None or not self._unlabeled_size:
            yield
            return
        with LookAhead(self.images.streamed, batches) as self._look_ahead:
            try:
                yield
            finally:
                self._look_ahead = None

    def select(self, mask: Tensor, count: int, order: Order) -> None:
        """Draw only some of the unlabeled images from the next batch on.

        Args:
            mask: (unlabeled images,) bool: False for images that `order` never draws.
            count: number of images in an epoch.
            order: draws an epoch.
        """
        self.pool_mask = mask.to(self.pool_mask.device)
        if self._unlabeled_size:
            self._unlabeled = IndexStream(count, self._seed, _stream("unlabeled"), order)

    def draw(self, number: int) -> Batch:
        """Return batch `number`, counted from 0; this process's part of it."""
        device = self.images.labels.device
        labeled = self._labeled.take(number * self._labeled_size, self._labeled_size)
        unlabeled = torch.empty(0, dtype=torch.int64)
        if self._unlabeled_size:
            unlabeled = self._unlabeled.take(number * self._unlabeled_size, self._unlabeled_size)
        labeled = self._processes.local_shard(labeled).to(device, non_blocking=True)
        unlabeled = self._processes.local_shard(unlabeled).to(device, non_blocking=True)
        if self.images.feature_views is not None:
            views = self._feature_views(self.images.feature_views, number, labeled, unlabeled)
        else:
            x = self.images.loaded.gather(self.images.labeled[labeled])
            u = self._gather_unlabeled(number, unlabeled)
            views = self._views(number, {"labeled": x, "unlabeled": u})
        extra = {name: views.pop(name) for name in self.views.extra}
        return Batch(
            labels=self.images.labels[labeled],
            labeled_indices=labeled,
            unlabeled_indices=unlabeled,
            unlabeled_labels=self.images.hidden[unlabeled] if self._uses_hidden_labels else None,
            extra=extra,
            **views,
        )

    def _gather_unlabeled(self, number: int, indices: Tensor) -> Tensor:
        """Return the unlabeled images of a batch."""
        if self._look_ahead is None:
            return self.images.pool.gather(self.images.unlabeled[indices])
        following = self._unlabeled.take((number + 1) * self._unlabeled_size, self._unlabeled_size)
        return self._look_ahead.gather(
            number, self.images.unlabeled[indices], self.images.unlabeled[following]
        )

    def digests(self, image_size: Size) -> dict[str, str]:
        """Return hashes of the first positions of each order and of the first draws, by name.

        ``labeled_order`` and ``unlabeled_order`` are of the first positions; ``labeled_weak``
        and the like, for each kind of view by an augmenter of the run, of the first view's draws in
        the first batches, of as many rows as a batch has labeled images. So the names that two
        algorithms have in common have equal hashes, also if their batches have different numbers of
        unlabeled images. Changes nothing.

        Args:
            image_size: size of the images in pixels.
        """
        streams = {"labeled": (self._labeled, self._labeled_size)}
        if self._unlabeled_size:
            streams["unlabeled"] = (self._unlabeled, self._unlabeled_size)
        digests = {}
        for part, (stream, size) in streams.items():
            digests[f"{part}_order"] = _digest([stream.take(0, _POSITIONS)])
            for kind, view in self.views.kinds.items():
                if view.count and view.source == part and view.augmenter in ("weak", "strong"):
                    name = kind if kind in _SHORT else f"{part}_{view.augmenter}_{kind}"
                    rows = self._first_rows(view.augmenter, kind, size, image_size)
                    digests[name] = _digest(rows)
        return digests

    def _first_rows(self, name: str, kind: str, size: int, image_size: Size) -> Iterator[Tensor]:
        augmenter = copy.deepcopy(self.augmenters[name])  # one may count its draws
        for number in range(_BATCHES):
            draws = augmenter.draw(size, *sides(image_size), self._generator(number, kind, 0))
            _check_draws(augmenter, draws, size)
            yield from (draws[name][: self._labeled_size] for name in sorted(draws))

    def hidden_labels(self, batch: Batch) -> Tensor:
        """Return the (U,) true classes of the unlabeled images, -1 if unknown; for metrics."""
        return self.images.hidden[batch.unlabeled_indices]

    def probe(self, augmenter: Augmenter, number: int) -> tuple[Tensor, AugmentationParams, Tensor]:
        """Return views of the batch's labeled images for an augmenter that learns from feedback.

        The same in every process, so that its state stays the same as well.

        Returns:
            The views (B, C, H, W), their draws, and the labels (B,).
        """
        labeled = self._labeled.take(number * self._labeled_size, self._labeled_size)
        labeled = labeled.to(self.images.labels.device)
        images = self.images.loaded.gather(self.images.labeled[labeled])
        count, _, height, width = images.shape
        draws = augmenter.draw_probe(count, height, width, self._generator(number, "probe", 0))
        return augmenter.transform(images, draws), draws, self.images.labels[labeled]

    def labeled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield all labeled images in order, unchanged: (positions, images, labels) of a batch."""
        indices, labels = self.images.labeled, self.images.labels
        for positions in torch.split(torch.arange(len(labels), device=labels.device), size):
            yield positions, self.images.inputs.gather(indices[positions]), labels[positions]

    def unlabeled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images in `pool_mask` in order, unchanged: (positions, images) of a batch."""
        images = self.images
        source = images.pool if images.features is None else images.features
        for positions in torch.split(self.pool_mask.nonzero().flatten(), size):
            yield positions, source.gather(images.unlabeled[positions])

    def _generator(self, number: int, kind: str, view: int) -> torch.Generator:
        stream = f"view/{kind}" if kind in self.views.extra else _stream(kind)
        return seeded_generator(self._seed, number, stream, view)

    def _feature_views(
        self, features: FeatureViews, number: int, labeled: Tensor, unlabeled: Tensor
    ) -> dict[str, Tensor]:
        """Draw for each image and view one of the views whose features were computed."""
        positions = {
            "labeled": features.labeled[labeled],
            "unlabeled": features.unlabeled[unlabeled],
        }
        views = {}
        for kind, view in self.views.kinds.items():
            stack, columns = features.stacks[view.augmenter], positions[view.source]
            drawn = [stack.new_empty(0, len(columns), stack.shape[-1])]
            for index in range(view.count):
                size = len(columns) * self._processes.size
                generator = self._generator(number, kind, index)
                which = torch.randint(len(stack), (size,), generator=generator)
                which = self._processes.local_shard(which).to(stack.device)
                drawn.append(stack[which, columns][None])
            views[kind] = torch.cat(drawn)
        return views

    def _views(self, number: int, images: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the views of all kinds, (count, n, C, H, W) each, from the images by source."""
        views: dict[str, Tensor] = {}
        for name, augmenter in self.augmenters.items():
            kinds = {k: view for k, view in self.views.kinds.items() if view.augmenter == name}
            views |= self._views_by(augmenter, kinds, number, images)
        return views

    def _views_by(
        self,
        augmenter: Augmenter,
        kinds: Mapping[str, View],
        number: int,
        images: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Return all views of one augmenter, computed in one call."""
        sources, draws, shapes = [], [], {}
        for kind, view in kinds.items():
            source = images[view.source]
            size, _, height, width = source.shape
            shapes[kind] = view.count, *source.shape
            for index in range(view.count):
                generator = self._generator(number, kind, index)
                count = size * self._processes.size
                params = augmenter.draw(count, height, width, generator)
                _check_draws(augmenter, params, count)
                draws.append({key: self._processes.local_shard(p) for key, p in params.items()})
                sources.append(source)
        if not sources:
            empty = images["labeled"].new_empty
            return {kind: empty(shape) for kind, shape in shapes.items()}
        joined = {key: torch.cat([params[key] for params in draws]) for key in draws[0]}
        stacked = torch.cat(sources)
        of = f"transform of augmenter {type(augmenter).__name__}"
        views = augmenter.transform(stacked, joined)
        check_tensor(views, stacked.shape, of, what="views", like=stacked)
        sizes = [count * size for count, size, *_ in shapes.values()]
        return {
            kind: _resized(part.view(shape), kinds[kind].size)
            for (kind, shape), part in zip(shapes.items(), torch.split(views, sizes), strict=True)
        }


def _check_draws(augmenter: Augmenter, draws: object, count: int) -> None:
    """Refuse draws of an augmenter that are not a row for each of `count` images.

    Raises:
        PluginError: One line that names the augmenter.
    """
    of = f"draw of augmenter {type(augmenter).__name__}"
    if not isinstance(draws, Mapping):
        raise PluginError(f"{of} returned {type(draws).__name__} instead of a dict of tensors")
    for name, drawn in draws.items():
        if not isinstance(drawn, Tensor) or drawn.shape[:1] != (count,):
            found = f"the shape {tuple(drawn.shape)}" if isinstance(drawn, Tensor) else f"{drawn!r}"
            raise PluginError(
                f"{of} returned {name!r} as {found} instead of a tensor with a row for each of "
                f"{count} images"
            )


def _resized(views: Tensor, size: int | None) -> Tensor:
    """Return views (K, n, C, H, W) whose shorter side is `size`; unchanged if it is None or so."""
    if size is None or min(views.shape[-2:]) == size:
        return views
    height, width = views.shape[-2:]
    shorter = min(height, width)
    new = round(height * size / shorter), round(width * size / shorter)
    resized = F.interpolate(views.flatten(0, 1), new, mode="bilinear", antialias=True)
    return resized.clamp_(0, 1).view(*views.shape[:3], *new)


def _stream(kind: str) -> str:
    """Return the name of a random stream, from which its seed is derived.

    The spelling is British on purpose: another one would change every draw.
    """
    return kind.replace("labeled", "labelled")


_SHORT = frozenset(Views().kinds)
"""Kinds of views that `Views` requests by a count."""


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        # Rounded: the last digits of a logarithm are not the same on every CPU.
        exact = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        digest.update(exact.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
