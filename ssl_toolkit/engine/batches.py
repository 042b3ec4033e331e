"""From stored pictures to the augmented views of a step.

Everything random here is a pure function of (seed, batch number): a resumed run and every
algorithm of a comparison see the same images in the same order under the same draws.

Algorithms with other numbers of unlabelled images a batch share as much as that allows. Batch t
holds positions t·U to (t+1)·U - 1 of one endless order, which depends on the seed and the pool
alone; row i of a view's draws depends on the seed, t, the kind of the view, its number and i, not
on U. So the labelled part is equal in every batch. A larger U runs through the same order faster,
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

from ssl_toolkit.data.feed.image_store import ImageStore
from ssl_toolkit.data.feed.sampling import BalancedStream, IndexStream, Order, derive_seed
from ssl_toolkit.engine.distributed import Ranks
from ssl_toolkit.engine.features import FeatureStore, FeatureViews
from ssl_toolkit.interfaces import Augmenter, Batch, Draws, Views


def seeded_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator that depends on the parts alone."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@dataclass(frozen=True)
class TrainingImages:
    """The images that training may touch, and where they are in the store."""

    store: ImageStore
    labelled: Tensor
    """(n,) int64 rows of the store, on its device; likewise below."""
    labels: Tensor
    """(n,) int64 classes of the labelled rows."""
    pool: ImageStore
    """Where the unlabelled ones are: the same store, or one that decodes them as they come."""
    unlabelled: Tensor
    """(m,) int64 rows of `pool`."""
    hidden: Tensor
    """(m,) int64 true classes of the unlabelled rows, -1 where unknown; for metrics and oracles."""
    order: Order | None = None
    """In which the unlabelled ones are drawn; None for any."""
    features: FeatureStore | None = None
    """Features of all rows of `store`, where a frozen backbone makes pixels needless."""
    feature_views: FeatureViews | None = None
    """Features of augmented views, from which batches are drawn in place of images."""

    @property
    def plain(self) -> ImageStore | FeatureStore:
        """What a model is evaluated on: features where there are some, else images."""
        return self.store if self.features is None else self.features

    def stream(self, seed: int) -> IndexStream:
        """Places in `unlabelled` in the order of a run."""
        return IndexStream(len(self.unlabelled), seed, "unlabelled", self.order)


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
        batch_size: B, labelled images in a batch.
        seed: the seed of the run.
        balanced: whether labelled images are drawn with the classes in equal shares.
        oracle: whether batches carry the hidden labels.
        ranks: the processes that share each batch, whose sizes they divide; None for this one.
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
        oracle: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self.images = images
        self.views = views
        self.weak = weak
        self.strong = strong
        self._seed = seed
        self._labelled_size = batch_size
        self._unlabelled_size = batch_size * views.unlabelled_ratio if views.needs_unlabelled else 0
        self._oracle = oracle
        self._ranks = ranks or Ranks()
        self._labelled = (
            BalancedStream(images.labels.cpu(), seed, "labelled")
            if balanced
            else IndexStream(len(images.labels), seed, "labelled")
        )
        if self._unlabelled_size:
            self._unlabelled = images.stream(seed)

    def draw(self, number: int) -> Batch:
        """Batch `number`, counted from 0; this process's part of it."""
        device = self.images.labels.device
        store, views = self.images.store, self.views
        labelled = self._labelled.take(number * self._labelled_size, self._labelled_size)
        unlabelled = torch.empty(0, dtype=torch.int64)
        if self._unlabelled_size:
            unlabelled = self._unlabelled.take(
                number * self._unlabelled_size, self._unlabelled_size
            )
        labelled = self._ranks.share(labelled).to(device, non_blocking=True)
        unlabelled = self._ranks.share(unlabelled).to(device, non_blocking=True)
        if self.images.feature_views is not None:
            return self._feature_batch(self.images.feature_views, number, labelled, unlabelled)
        x = store.gather(self.images.labelled[labelled])
        u = self.images.pool.gather(self.images.unlabelled[unlabelled])
        weak_x, weak_u = self._views(
            self.weak,
            number,
            {
                "labelled_weak": (x, views.labelled_weak),
                "unlabelled_weak": (u, views.unlabelled_weak),
            },
        )
        strong_x, strong_u = self._views(
            self.strong,
            number,
            {
                "labelled_strong": (x, views.labelled_strong),
                "unlabelled_strong": (u, views.unlabelled_strong),
            },
        )
        return Batch(
            labels=self.images.labels[labelled],
            labelled_indices=labelled,
            labelled_weak=weak_x,
            labelled_strong=strong_x,
            unlabelled_indices=unlabelled,
            unlabelled_weak=weak_u,
            unlabelled_strong=strong_u,
            unlabelled_labels=self.images.hidden[unlabelled] if self._oracle else None,
        )

    def digests(self, image_size: int) -> dict[str, str]:
        """Hashes of how the orders and the draws begin, by name.

        ``labelled_order`` and ``unlabelled_order`` are of the first positions; ``labelled_weak``
        and the like, for each kind of view there is, of the first view's draws in the first
        batches, of as many rows as a batch has labelled images. So the names that two algorithms
        have in common have equal hashes, also where their batches have other numbers of unlabelled
        images. Nothing is changed by it.

        Args:
            image_size: side of the images in pixels.
        """
        streams = {"labelled": (self._labelled, self._labelled_size)}
        if self._unlabelled_size:
            streams["unlabelled"] = (self._unlabelled, self._unlabelled_size)
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
            generator = seeded_generator(self._seed, number, kind, 0)
            draws = augmenter.draw(size, image_size, image_size, generator)
            yield from (draws[name][: self._labelled_size] for name in sorted(draws))

    def hidden_labels(self, batch: Batch) -> Tensor:
        """(U,) true classes of the batch's unlabelled images, -1 where unknown; for metrics."""
        return self.images.hidden[batch.unlabelled_indices]

    def probe(self, augmenter: Augmenter, number: int) -> tuple[Tensor, Draws, Tensor]:
        """Views of the batch's labelled images for an augmenter that wants feedback.

        The same in every process, so that its state stays the same as well.

        Returns:
            The views (B, 3, H, W), their draws, and the labels (B,).
        """
        rows = self._labelled.take(number * self._labelled_size, self._labelled_size)
        rows = rows.to(self.images.labels.device)
        images = self.images.store.gather(self.images.labelled[rows])
        generator = seeded_generator(self._seed, number, "probe", 0)
        count, _, height, width = images.shape
        draws = augmenter.draw_probe(count, height, width, generator)
        return augmenter.transform(images, draws), draws, self.images.labels[rows]

    def labelled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """All labelled images in order, unchanged: (indices, images, labels), `size` at a time."""
        rows = self.images.labelled
        for indices in torch.split(torch.arange(len(rows), device=rows.device), size):
            yield indices, self.images.plain.gather(rows[indices]), self.images.labels[indices]

    def unlabelled_images(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole pool in order, unchanged: (indices, images), `size` at a time."""
        rows = self.images.unlabelled
        for indices in torch.split(torch.arange(len(rows), device=rows.device), size):
            plain = self.images.pool if self.images.features is None else self.images.features
            yield indices, plain.gather(rows[indices])

    def _feature_batch(
        self, features: FeatureViews, number: int, labelled: Tensor, unlabelled: Tensor
    ) -> Batch:
        """A batch of features: for each image and view one of the views that were computed."""
        rows = {
            "labelled": features.labeled[labelled],
            "unlabelled": features.unlabeled[unlabelled],
        }
        stacks = {"weak": features.weak, "strong": features.strong}

        def drawn(source: str, strength: str) -> Tensor:
            kind, stack = f"{source}_{strength}", stacks[strength]
            chosen = []
            for view in range(getattr(self.views, kind)):
                generator = seeded_generator(self._seed, number, kind, view)
                size = len(rows[source]) * self._ranks.size
                which = torch.randint(len(stack), (size,), generator=generator)
                chosen.append(stack[self._ranks.share(which).to(stack.device), rows[source]])
            empty = stack.new_empty(0, len(rows[source]), stack.shape[-1])
            return torch.stack(chosen) if chosen else empty

        return Batch(
            labels=self.images.labels[labelled],
            labelled_indices=labelled,
            labelled_weak=drawn("labelled", "weak"),
            labelled_strong=drawn("labelled", "strong"),
            unlabelled_indices=unlabelled,
            unlabelled_weak=drawn("unlabelled", "weak"),
            unlabelled_strong=drawn("unlabelled", "strong"),
            unlabelled_labels=self.images.hidden[unlabelled] if self._oracle else None,
        )

    def _views(
        self, augmenter: Augmenter, number: int, wanted: dict[str, tuple[Tensor, int]]
    ) -> list[Tensor]:
        """All views of one augmenter, made in one call; per kind (views, n, 3, H, W)."""
        sources, draws = [], []
        for kind, (images, count) in wanted.items():
            size, _, height, width = images.shape
            for view in range(count):
                generator = seeded_generator(self._seed, number, kind, view)
                drawn = augmenter.draw(size * self._ranks.size, height, width, generator)
                draws.append({key: self._ranks.share(value) for key, value in drawn.items()})
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


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        # Rounded: the last digits of a logarithm are not the same on every CPU.
        exact = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        digest.update(exact.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
