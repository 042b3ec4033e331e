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
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.streaming import Order
from ssl_toolkit.engine.training_images import (
    FeatureViews,
    ImageSource,
    TrainingImages,
    channel_statistics,
)
from ssl_toolkit.interfaces import AugmentationParams, Augmenter, Batch, ChannelStatistics, Views

_EPOCHS = 2  # permutations in memory: a batch may cover the end of one epoch and the next start
_POSITIONS = 256  # of an order, and
_BATCHES = 3  # of draws, that a digest covers
_COUNTED = 2000
"""Streamed images from which channel statistics are computed."""


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on the numbers and texts alone.

    The first 63 bits of a SHA-256, so it is the same in every process and on every machine;
    ``1`` and ``"1"`` are different parts.

    >>> derive_seed(0, "labeled") == derive_seed(0, "labeled")
    True
    """
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def seeded_generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator whose seed is derived from the parts."""
    return torch.Generator().manual_seed(derive_seed(*parts))


class IndexStream:
    """Endless shuffled order of 0 .. count-1: one permutation after another.

    Args:
        count: number of indices, at least 1.
        seed: seed of the run.
        name: unique among the streams of a run, such as ``"labeled"``.
        order: draws the permutation of an epoch; None for a uniform one.

    Raises:
        ValueError: `count` is below 1.
    """

    def __init__(self, count: int, seed: int, name: str, order: Order | None = None) -> None:
        if count < 1:
            raise ValueError(f"stream {name!r} needs at least one index, got {count}")
        self.count = count
        self._seed = seed
        self._name = name
        self._order = order
        self._epochs: dict[int, Tensor] = {}

    def take(self, start: int, length: int) -> Tensor:
        """Return the indices at positions start .. start+length-1 of the endless order.

        Returns:
            (length,) int64 on the CPU. Costs O(length) while positions advance.

        Raises:
            ValueError: `start` or `length` is negative.
        """
        if start < 0 or length < 0:
            raise ValueError(f"start and length must be at least 0, got {start} and {length}")
        pieces = [torch.empty(0, dtype=torch.int64)]
        position, end = start, start + length
        while position < end:
            epoch, offset = divmod(position, self.count)
            pieces.append(self._epoch(epoch)[offset : offset + end - position])
            position += len(pieces[-1])
        return torch.cat(pieces)

    def at(self, position: int) -> int:
        """Return the index at one position of the endless order."""
        epoch, offset = divmod(position, self.count)
        return int(self._epoch(epoch)[offset])

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            generator = seeded_generator(self._seed, self._name, epoch)
            while len(self._epochs) >= _EPOCHS:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[epoch] = (
                torch.randperm(self.count, generator=generator)
                if self._order is None
                else self._order(generator)
            )
        return self._epochs[epoch]


class BalancedStream:
    """Endless order of indices in which every class is equally frequent.

    Each round contains one index of every class that occurs, the classes in a new random order;
    within a class the indices come in its own `IndexStream`.

    Args:
        labels: (N,) class of each index, none negative; classes may be absent.
        seed: seed of the run.
        name: unique among the streams of a run.

    Raises:
        ValueError: `labels` is empty or contains a negative label.
    """

    def __init__(self, labels: Tensor | Sequence[int], seed: int, name: str) -> None:
        labels = torch.as_tensor(labels, dtype=torch.int64)
        if len(labels) == 0 or int(labels.min()) < 0:
            raise ValueError(f"stream {name!r} needs at least one label and none below 0")
        self._classes: list[tuple[list[int], IndexStream]] = []
        for label in torch.unique(labels).tolist():
            members = (labels == label).nonzero().flatten().tolist()
            stream = IndexStream(len(members), seed, f"{name}/class-{label}")
            self._classes.append((members, stream))
        # An epoch of this stream is a round: each class once.
        self._rounds = IndexStream(len(self._classes), seed, f"{name}/rounds")

    def take(self, start: int, length: int) -> Tensor:
        """Return the indices at positions start .. start+length-1; see `IndexStream.take`."""
        indices = []
        for position, which in enumerate(self._rounds.take(start, length).tolist(), start):
            members, stream = self._classes[which]
            indices.append(members[stream.at(position // len(self._classes))])
        return torch.tensor(indices, dtype=torch.int64)


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
        weak: augmenter of the weak views.
        strong: augmenter of the strong views.
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
        weak: Augmenter,
        strong: Augmenter,
        *,
        batch_size: int,
        seed: int,
        balanced: bool = False,
        uses_hidden_labels: bool = False,
        processes: ProcessGroup | None = None,
    ) -> None:
        self.images = images
        self.views = views
        self.weak = weak
        self.strong = strong
        self._augmenters = {"weak": weak, "strong": strong}
        self._seed = seed
        self._labeled_size = batch_size
        self._unlabeled_size = batch_size * views.unlabeled_ratio if views.needs_unlabeled else 0
        self._uses_hidden_labels = uses_hidden_labels
        self._processes = processes or ProcessGroup()
        self._labeled = (
            BalancedStream(images.labels.cpu(), seed, _stream("labeled"))
            if balanced
            else IndexStream(len(images.labels), seed, _stream("labeled"))
        )
        if self._unlabeled_size:
            self._unlabeled = unlabeled_stream(images, seed)

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
            u = self.images.pool.gather(self.images.unlabeled[unlabeled])
            views = self._views("weak", number, x, u) | self._views("strong", number, x, u)
        return Batch(
            labels=self.images.labels[labeled],
            labeled_indices=labeled,
            unlabeled_indices=unlabeled,
            unlabeled_labels=self.images.hidden[unlabeled] if self._uses_hidden_labels else None,
            **views,
        )

    def digests(self, image_size: int) -> dict[str, str]:
        """Return hashes of the first positions of each order and of the first draws, by name.

        ``labeled_order`` and ``unlabeled_order`` are of the first positions; ``labeled_weak``
        and the like, for each kind of view there is, of the first view's draws in the first
        batches, of as many rows as a batch has labeled images. So the names that two algorithms
        have in common have equal hashes, also if their batches have different numbers of unlabeled
        images. Changes nothing.

        Args:
            image_size: side of the images in pixels.
        """
        streams = {"labeled": (self._labeled, self._labeled_size)}
        if self._unlabeled_size:
            streams["unlabeled"] = (self._unlabeled, self._unlabeled_size)
        digests = {}
        for part, (stream, size) in streams.items():
            digests[f"{part}_order"] = _digest([stream.take(0, _POSITIONS)])
            for strength, augmenter in self._augmenters.items():
                kind = f"{part}_{strength}"
                if getattr(self.views, kind):
                    digests[kind] = _digest(self._first_rows(augmenter, kind, size, image_size))
        return digests

    def _first_rows(
        self, augmenter: Augmenter, kind: str, size: int, image_size: int
    ) -> Iterator[Tensor]:
        augmenter = copy.deepcopy(augmenter)  # one may count its draws
        for number in range(_BATCHES):
            draws = augmenter.draw(size, image_size, image_size, self._generator(number, kind, 0))
            yield from (draws[name][: self._labeled_size] for name in sorted(draws))

    def hidden_labels(self, batch: Batch) -> Tensor:
        """Return the (U,) true classes of the unlabeled images, -1 if unknown; for metrics."""
        return self.images.hidden[batch.unlabeled_indices]

    def probe(self, augmenter: Augmenter, number: int) -> tuple[Tensor, AugmentationParams, Tensor]:
        """Return views of the batch's labeled images for an augmenter that learns from feedback.

        The same in every process, so that its state stays the same as well.

        Returns:
            The views (B, 3, H, W), their draws, and the labels (B,).
        """
        labeled = self._labeled.take(number * self._labeled_size, self._labeled_size)
        labeled = labeled.to(self.images.labels.device)
        images = self.images.loaded.gather(self.images.labeled[labeled])
        count, _, height, width = images.shape
        draws = augmenter.draw_probe(count, height, width, self._generator(number, "probe", 0))
        return augmenter.transform(images, draws), draws, self.images.labels[labeled]

    def labeled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield all labeled images in order, unchanged: (positions, images, labels) of a batch."""
        labels = self.images.labels
        for positions, images in _in_order(self.images.inputs, self.images.labeled, size):
            yield positions, images, labels[positions]

    def unlabeled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the whole pool in order, unchanged: (positions, images) of a batch."""
        images = self.images
        source = images.pool if images.features is None else images.features
        yield from _in_order(source, images.unlabeled, size)

    def _generator(self, number: int, kind: str, view: int) -> torch.Generator:
        return seeded_generator(self._seed, number, _stream(kind), view)

    def _feature_views(
        self, features: FeatureViews, number: int, labeled: Tensor, unlabeled: Tensor
    ) -> dict[str, Tensor]:
        """Draw for each image and view one of the views whose features were computed."""
        positions = {
            "labeled": features.labeled[labeled],
            "unlabeled": features.unlabeled[unlabeled],
        }
        views = {}
        for strength, stack in (("weak", features.weak), ("strong", features.strong)):
            for part, columns in positions.items():
                kind = f"{part}_{strength}"
                drawn = [stack.new_empty(0, len(columns), stack.shape[-1])]
                for view in range(getattr(self.views, kind)):
                    size = len(columns) * self._processes.size
                    generator = self._generator(number, kind, view)
                    which = torch.randint(len(stack), (size,), generator=generator)
                    which = self._processes.local_shard(which).to(stack.device)
                    drawn.append(stack[which, columns][None])
                views[kind] = torch.cat(drawn)
        return views

    def _views(self, strength: str, number: int, x: Tensor, u: Tensor) -> dict[str, Tensor]:
        """Return all views of one augmenter, computed in one call; per kind (views, n, 3, H, W)."""
        augmenter = self._augmenters[strength]
        sources, draws, shapes = [], [], {}
        for kind, images in ((f"labeled_{strength}", x), (f"unlabeled_{strength}", u)):
            size, _, height, width = images.shape
            shapes[kind] = getattr(self.views, kind), *images.shape
            for view in range(shapes[kind][0]):
                generator = self._generator(number, kind, view)
                params = augmenter.draw(size * self._processes.size, height, width, generator)
                draws.append({key: self._processes.local_shard(p) for key, p in params.items()})
                sources.append(images)
        if not sources:
            return {kind: x.new_empty(shape) for kind, shape in shapes.items()}
        joined = {key: torch.cat([params[key] for params in draws]) for key in draws[0]}
        views = augmenter.transform(torch.cat(sources), joined)
        sizes = [count * size for count, size, *_ in shapes.values()]
        return {
            kind: part.view(shape)
            for (kind, shape), part in zip(shapes.items(), torch.split(views, sizes), strict=True)
        }


def _in_order(source: ImageSource, indices: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    positions = torch.arange(len(indices), device=indices.device)
    for part in torch.split(positions, size):
        yield part, source.gather(indices[part])


def _stream(kind: str) -> str:
    """Return the name of a random stream, from which its seed is derived.

    The spelling is British on purpose: another one would change every draw.
    """
    return kind.replace("labeled", "labelled")


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        # Rounded: the last digits of a logarithm are not the same on every CPU.
        exact = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        digest.update(exact.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
