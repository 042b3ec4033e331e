"""Seeds and endless random orders: pure functions of seed, name and position."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ssl_toolkit.engine.streaming import Order

_EPOCHS = 2  # permutations in memory, because a batch may span two epochs


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that only depends on the parts.

    It is taken from a SHA-256 hash, so it is the same in every process and on every machine; ``1``
    and ``"1"`` are different parts.

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

    Each round contains one index of every class that occurs, with the classes in a new random
    order; the indices of a class follow one `IndexStream` per class.

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
        for position, index in enumerate(self._rounds.take(start, length).tolist(), start):
            members, stream = self._classes[index]
            indices.append(members[stream.at(position // len(self._classes))])
        return torch.tensor(indices, dtype=torch.int64)
