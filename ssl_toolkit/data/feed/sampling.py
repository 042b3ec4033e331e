"""Endless orders of indices: pure functions of (seed, name, position), whatever the batch size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_EPOCHS_KEPT = 2  # a batch may straddle two epochs


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) from a tuple of numbers and texts.

    The first 63 bits of a SHA-256, so it is the same in every process and on every machine;
    ``1`` and ``"1"`` are different parts.

    >>> derive_seed(0, "labeled") == derive_seed(0, "labeled")
    True
    """
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


Order = Callable[[torch.Generator], Tensor]
"""Draws a permutation, (count,) int64."""


def buffered_order(sequence: Tensor, runs: Sequence[int], buffer: int) -> Order:
    """Orders that read run after run, from start to end, through a shuffle buffer.

    The runs come in an order drawn for each epoch. An index comes after at most `buffer` others
    that follow it there, so that reading from start to end never holds more than `buffer`.

    Args:
        sequence: (n,) indices in the order of reading.
        runs: how many of them make each run, n in all.
        buffer: at least 1; 1 changes nothing but the order of the runs.
    """
    pieces = torch.split(sequence, [*runs])

    def order(generator: torch.Generator) -> Tensor:
        turns = torch.randperm(len(pieces), generator=generator).tolist()
        read = torch.cat([pieces[turn] for turn in turns])
        delays = torch.rand(len(read), generator=generator, dtype=torch.float64)
        # Index i leaves between i and i + buffer - 1, in the order of these times.
        times = torch.arange(len(read), dtype=torch.float64) + (buffer - 1) * delays
        return read[torch.argsort(times, stable=True)]

    return order


class IndexStream:
    """0 .. count-1 in an endless shuffled order; every epoch is a permutation of its own.

    Args:
        count: how many indices there are, at least 1.
        seed: the seed of the run.
        name: unique among the streams of a run, such as ``"labeled"``.
        order: draws the permutation of an epoch; None for any with equal chance.

    Raises:
        ValueError: `count` is below 1.
    """

    def __init__(self, count: int, seed: int, name: str, order: Order | None = None) -> None:
        if count < 1:
            raise ValueError(f"stream {name!r} needs at least one index, got {count}")
        self.count = count
        self.seed = seed
        self.name = name
        self._order = order
        self._epochs: dict[int, Tensor] = {}

    def take(self, start: int, length: int) -> Tensor:
        """The indices at positions start .. start+length-1 of the endless order.

        Returns:
            (length,) int64 on the CPU. Costs O(length) while positions advance.

        Raises:
            ValueError: `start` or `length` is negative.
        """
        _check_range(start, length)
        pieces = []
        position = start
        while position < start + length:
            epoch, offset = divmod(position, self.count)
            piece = self._epoch(epoch)[offset : offset + start + length - position]
            pieces.append(piece)
            position += len(piece)
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)

    def at(self, position: int) -> int:
        """The index at one position of the endless order."""
        epoch, offset = divmod(position, self.count)
        return int(self._epoch(epoch)[offset])

    def _epoch(self, epoch: int) -> Tensor:
        order = self._epochs.get(epoch)
        if order is None:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, self.name, epoch))
            order = (
                torch.randperm(self.count, generator=generator)
                if self._order is None
                else self._order(generator)
            )
            while len(self._epochs) >= _EPOCHS_KEPT:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[epoch] = order
        return order


class BalancedStream:
    """Indices in an endless order that shows every class equally often.

    Each round shows one index of every class that occurs, the classes in a new random order;
    within a class the indices come in its own `IndexStream`.

    Args:
        labels: (N,) class of each index, none negative; classes may be absent.
        seed: the seed of the run.
        name: unique among the streams of a run.

    Raises:
        ValueError: `labels` is empty or holds a negative label.
    """

    def __init__(self, labels: Tensor | Sequence[int], seed: int, name: str) -> None:
        labels = torch.as_tensor(labels, dtype=torch.int64)
        if len(labels) == 0 or int(labels.min()) < 0:
            raise ValueError(f"stream {name!r} needs at least one label and none below 0")
        self._members: list[list[int]] = []
        self._orders: list[IndexStream] = []
        for label in sorted(set(labels.tolist())):
            members = (labels == label).nonzero().flatten().tolist()
            self._members.append(members)
            self._orders.append(IndexStream(len(members), seed, f"{name}/class-{label}"))
        # An epoch of this stream is a round: each class once.
        self._rounds = IndexStream(len(self._members), seed, f"{name}/rounds")

    def take(self, start: int, length: int) -> Tensor:
        """The indices at positions start .. start+length-1; see `IndexStream.take`."""
        picked = []
        for position, which in enumerate(self._rounds.take(start, length).tolist(), start):
            turn = position // len(self._members)
            picked.append(self._members[which][self._orders[which].at(turn)])
        return torch.tensor(picked, dtype=torch.int64)


def _check_range(start: int, length: int) -> None:
    if start < 0 or length < 0:
        raise ValueError(f"start and length must be at least 0, got {start} and {length}")
