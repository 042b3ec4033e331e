"""Labelled pictures from tar shards that are read once, start to end, in a shuffled order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.pictures import pillow_muted, try_picture
from ssl_toolkit.data.shards import Sample, add_member, content_of, members
from ssl_toolkit.data.streams import derive_seed
from ssl_toolkit.errors import DataError


class ShardPicture(NamedTuple):
    """A picture of a stream."""

    key: str
    """Name of the shard, a slash, name of the member."""
    pixels: NDArray[np.uint8]
    """(size, size, 3) uint8, RGB."""
    label: str
    """The class as it is written; empty for none."""


class ShardStream:
    """Pictures of shards that are larger than memory or disk, in a seeded order.

    Shards are read one after another in an order of their own for every epoch. At most `buffer`
    encoded pictures are held; each time one comes in, one of those held, by chance, goes out. Each
    is verified by decoding it when it goes out. The members of a sample must follow each other, as
    WebDataset's writers put them. Compressed shards (``.tar.gz``) can be read too.

    `--data` reads shards by an index and keeps the decoded pictures, which is faster where there
    is room for them; this class is for where there is none.

    Args:
        shards: tar files, at least one.
        size: side in pixels; see `fit_picture` for how pictures are made square.
        seed: of both orders; equal arguments give equal streams.
        buffer: pictures held, at least 1; 1 keeps the order of the shards' members.
        on_bad_image: ``error`` raises at the first picture that can't be read; ``skip`` leaves
            such pictures out and names them in `skipped`.

    Raises:
        ValueError: no shard, or a buffer below 1.
    """

    def __init__(
        self,
        shards: Sequence[Path | str],
        size: int,
        *,
        seed: int = 0,
        buffer: int = 1000,
        on_bad_image: Literal["error", "skip"] = "error",
    ) -> None:
        if not shards or buffer < 1:
            raise ValueError(f"a stream needs a shard and a buffer, got {len(shards)}, {buffer}")
        self.shards = [Path(shard) for shard in shards]
        self.size = size
        self.seed = seed
        self.buffer = buffer
        self.on_bad_image = on_bad_image
        self.skipped: dict[str, str] = {}
        """Why a picture could not be read, by key."""

    def epoch(self, number: int = 0) -> Iterator[ShardPicture]:
        """Every picture once, in the order of one epoch.

        Raises:
            DataError: a shard or a label can't be read, or a picture under ``error``.
        """
        chance = random.Random(derive_seed(self.seed, "shards", number))
        shards = chance.sample(self.shards, len(self.shards))
        held: list[tuple[str, bytes, str]] = []
        for sample in (found for shard in shards for found in _samples(shard)):
            if len(held) < self.buffer:
                held.append(sample)
                continue
            place = chance.randrange(len(held))
            leaving, held[place] = held[place], sample
            yield from self._decoded(*leaving)
        chance.shuffle(held)
        for sample in held:
            yield from self._decoded(*sample)

    def _decoded(self, key: str, content: bytes, label: str) -> Iterator[ShardPicture]:
        with pillow_muted():
            answer = try_picture(content, self.size)
        if not isinstance(answer, str):
            yield ShardPicture(key, answer, label)
        elif self.on_bad_image == "skip":
            self.skipped[key] = answer
        else:
            raise DataError(
                f"can't read picture {key}: {answer}; mend it, or leave such pictures out with "
                "on_bad_image='skip'"
            )


def _samples(shard: Path) -> Iterator[tuple[str, bytes, str]]:
    """Key, encoded picture and label of the samples of a shard, as they come."""
    stem, sample, content = "", Sample(), b""

    def whole() -> Iterator[tuple[str, bytes, str]]:
        if len(sample.pictures) > 1:
            raise DataError(
                f"{shard.name}/{stem} has {len(sample.pictures)} pictures; one is right"
            )
        if sample.pictures:
            yield f"{shard.name}/{sample.pictures[0].name}", content, sample.label

    for found, suffix, member, archive in members(shard, None, "r|*"):
        if found != stem:
            yield from whole()
            stem, sample, content = found, Sample(), b""
        before = len(sample.pictures)
        add_member(sample, suffix, member, archive)
        if len(sample.pictures) > before:
            content = content_of(member, archive)
    yield from whole()
