"""From stored images to the augmented views of a step.

Everything random here is a pure function of (seed, batch number): a resumed run and every
algorithm of a comparison see the same images in the same order under the same draws.

Algorithms with other numbers of unlabeled images per batch share as much as that allows. Batch t
holds positions t·U to (t+1)·U - 1 of one endless order, which depends on the seed and the pool
alone; row i of a view's draws depends on the seed, t, the kind of the view, its number and i, not
on U. So the labeled part is equal in every batch. A larger U runs through the same order faster,
and the first rows of a view have equal draws in every batch, though after the first batch for other
images.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ssl_toolkit.data.feed.image_store import ImageTensorStore
from ssl_toolkit.data.feed.sampling import BalancedStream, IndexStream, Order, derive_seed
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.features import FeatureStore, FeatureViews
from ssl_toolkit.interfaces import AugmentationParams, Augmenter, Batch, Views


def seeded_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator that depends on the parts alone."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@dataclass(frozen=True)
class TrainingImages:
    """The images of training, and their rows of the store."""

    store: ImageTensorStore
    labeled: Tensor
    """(n,) int64 rows of the store, on its device; likewise below."""
    labels: Tensor
    """(n,) int64 classes of the labeled rows."""
    pool: ImageTensorStore
    """Where the unlabeled ones are: the same store, or one that decodes them as they come."""
    unlabeled: Tensor
    """(m,) int64 rows of `pool`."""
    hidden: Tensor
    """(m,) int64 true classes of the unlabeled rows, -1 where unknown; for metrics and oracles."""
    order: Order | None = None
    """In which the unlabeled ones are drawn; None for any."""
    features: FeatureStore | None = None
    """Features of all rows of `store`, where a frozen backbone makes pixels needless."""
    feature_views: FeatureViews | None = None
    """Features of augmented views, from which batches are drawn in place of images."""

    @property
    def plain(self) -> ImageTensorStore | FeatureStore:
        """Features if there are any, else images: the input of an evaluation."""
        return self.store if self.features is None else self.features

    def stream(self, seed: int) -> IndexStream:
        """Places in `unlabeled` in the order of a run."""
        return IndexStream(len(self.unlabeled), seed, _stream("unlabeled"), self.order)


_POSITIONS = 256  # of an order, and
_BATCHES = 3  # of draws, that a digest covers


class BatchMaker:
    """Draws the batch of any number, in any order.

    Processes that share a run draw the same; each reads and augments its own part of it alone.

    Args:
        images: what to draw from.
        views: what the algorithm wants.
        weak: augmenter of the weak views.
        strong: augmenter of the strong views.
        batch_size: B, labeled images in a batch.
        seed: the seed of the run.
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
            self._unlabeled = images.stream(seed)

    def draw(self, number: int) -> Batch:
        """Batch `number`, counted from 0; this process's part of it."""
        device = self.images.labels.device
        store, views = self.images.store, self.views
        labeled = self._labeled.take(number * self._labeled_size, self._labeled_size)
        unlabeled = torch.empty(0, dtype=torch.int64)
        if self._unlabeled_size:
            unlabeled = self._unlabeled.take(number * self._unlabeled_size, self._unlabeled_size)
        labeled = self._processes.local_shard(labeled).to(device, non_blocking=True)
        unlabeled = self._processes.local_shard(unlabeled).to(device, non_blocking=True)
        if self.images.feature_views is not None:
            return self._feature_batch(self.images.feature_views, number, labeled, unlabeled)
        x = store.gather(self.images.labeled[labeled])
        u = self.images.pool.gather(self.images.unlabeled[unlabeled])
        weak_x, weak_u = self._views(
            self.weak,
            number,
            {
                "labeled_weak": (x, views.labeled_weak),
                "unlabeled_weak": (u, views.unlabeled_weak),
            },
        )
        strong_x, strong_u = self._views(
            self.strong,
            number,
            {
                "labeled_strong": (x, views.labeled_strong),
                "unlabeled_strong": (u, views.unlabeled_strong),
            },
        )
        return Batch(
            labels=self.images.labels[labeled],
            labeled_indices=labeled,
            labeled_weak=weak_x,
            labeled_strong=strong_x,
            unlabeled_indices=unlabeled,
            unlabeled_weak=weak_u,
            unlabeled_strong=strong_u,
            unlabeled_labels=self.images.hidden[unlabeled] if self._uses_hidden_labels else None,
        )

    def digests(self, image_size: int) -> dict[str, str]:
        """Return hashes of the first positions of each order and the first draws, by name.

        ``labeled_order`` and ``unlabeled_order`` are of the first positions; ``labeled_weak``
        and the like, for each kind of view there is, of the first view's draws in the first
        batches, of as many rows as a batch has labeled images. So the names that two algorithms
        have in common have equal hashes, also where their batches have other numbers of unlabeled
        images. Nothing is changed by it.

        Args:
            image_size: side of the images in pixels.
        """
        streams = {"labeled": (self._labeled, self._labeled_size)}
        if self._unlabeled_size:
            streams["unlabeled"] = (self._unlabeled, self._unlabeled_size)
        found = {}
        for part, (stream, size) in streams.items():
            found[f"{part}_order"] = _digest([stream.take(0, _POSITIONS)])
            for strength, augmenter in (("weak", self.weak), ("strong", self.strong)):
                kind = f"{part}_{strength}"
                if getattr(self.views, kind):
                    found[kind] = _digest(self._first_rows(augmenter, kind, size, image_size))
        return found

    def _first_rows(
        self, augmenter: Augmenter, kind: str, size: int, image_size: int
    ) -> Iterator[Tensor]:
        augmenter = copy.deepcopy(augmenter)  # one may count what it draws
        for number in range(_BATCHES):
            generator = seeded_generator(self._seed, number, _stream(kind), 0)
            draws = augmenter.draw(size, image_size, image_size, generator)
            yield from (draws[name][: self._labeled_size] for name in sorted(draws))

    def hidden_labels(self, batch: Batch) -> Tensor:
        """(U,) true classes of the batch's unlabeled images, -1 where unknown; for metrics."""
        return self.images.hidden[batch.unlabeled_indices]

    def probe(self, augmenter: Augmenter, number: int) -> tuple[Tensor, AugmentationParams, Tensor]:
        """Views of the batch's labeled images for an augmenter that wants feedback.

        The same in every process, so that its state stays the same as well.

        Returns:
            The views (B, 3, H, W), their draws, and the labels (B,).
        """
        rows = self._labeled.take(number * self._labeled_size, self._labeled_size)
        rows = rows.to(self.images.labels.device)
        images = self.images.store.gather(self.images.labeled[rows])
        generator = seeded_generator(self._seed, number, "probe", 0)
        count, _, height, width = images.shape
        draws = augmenter.draw_probe(count, height, width, generator)
        return augmenter.transform(images, draws), draws, self.images.labels[rows]

    def labeled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """All labeled images in order, unchanged: (indices, images, labels), `size` at a time."""
        rows = self.images.labeled
        for indices in torch.split(torch.arange(len(rows), device=rows.device), size):
            yield indices, self.images.plain.gather(rows[indices]), self.images.labels[indices]

    def unlabeled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole pool in order, unchanged: (indices, images), `size` at a time."""
        rows = self.images.unlabeled
        for indices in torch.split(torch.arange(len(rows), device=rows.device), size):
            plain = self.images.pool if self.images.features is None else self.images.features
            yield indices, plain.gather(rows[indices])

    def _feature_batch(
        self, features: FeatureViews, number: int, labeled: Tensor, unlabeled: Tensor
    ) -> Batch:
        """A batch of features: for each image and view one of the views that were computed."""
        rows = {
            "labeled": features.labeled[labeled],
            "unlabeled": features.unlabeled[unlabeled],
        }
        stacks = {"weak": features.weak, "strong": features.strong}

        def drawn(source: str, strength: str) -> Tensor:
            kind, stack = f"{source}_{strength}", stacks[strength]
            chosen = []
            for view in range(getattr(self.views, kind)):
                generator = seeded_generator(self._seed, number, _stream(kind), view)
                size = len(rows[source]) * self._processes.size
                which = torch.randint(len(stack), (size,), generator=generator)
                chosen.append(
                    stack[self._processes.local_shard(which).to(stack.device), rows[source]]
                )
            empty = stack.new_empty(0, len(rows[source]), stack.shape[-1])
            return torch.stack(chosen) if chosen else empty

        return Batch(
            labels=self.images.labels[labeled],
            labeled_indices=labeled,
            labeled_weak=drawn("labeled", "weak"),
            labeled_strong=drawn("labeled", "strong"),
            unlabeled_indices=unlabeled,
            unlabeled_weak=drawn("unlabeled", "weak"),
            unlabeled_strong=drawn("unlabeled", "strong"),
            unlabeled_labels=self.images.hidden[unlabeled] if self._uses_hidden_labels else None,
        )

    def _views(
        self, augmenter: Augmenter, number: int, wanted: dict[str, tuple[Tensor, int]]
    ) -> list[Tensor]:
        """All views of one augmenter, made in one call; per kind (views, n, 3, H, W)."""
        sources, draws = [], []
        for kind, (images, count) in wanted.items():
            size, _, height, width = images.shape
            for view in range(count):
                generator = seeded_generator(self._seed, number, _stream(kind), view)
                drawn = augmenter.draw(size * self._processes.size, height, width, generator)
                draws.append(
                    {key: self._processes.local_shard(value) for key, value in drawn.items()}
                )
                sources.append(images)
        sizes = [len(images) * count for images, count in wanted.values()]
        shape = next(iter(wanted.values()))[0].shape[1:]
        if not sources:
            return [images.new_empty((0, len(images), *shape)) for images, _ in wanted.values()]
        joined = {key: torch.cat([draw[key] for draw in draws]) for key in draws[0]}
        made = augmenter.transform(torch.cat(sources), joined)
        ends = list(accumulate(sizes))
        return [
            made[end - size : end].view(count, len(images), *shape)
            for end, size, (images, count) in zip(ends, sizes, wanted.values(), strict=True)
        ]


def _stream(kind: str) -> str:
    """The name of a random stream; it is hashed, so another spelling would change every draw."""
    return kind.replace("labeled", "labelled")


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        # Rounded: the last digits of a logarithm are not the same on every CPU.
        exact = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        digest.update(exact.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
