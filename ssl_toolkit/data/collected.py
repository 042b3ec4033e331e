"""The pictures of a folder tree while they are put together into an `ImageTable`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit.data.pictures import picture_faults, read_pictures, shown
from ssl_toolkit.data.walk import Finds, some
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable, Part


@dataclass
class Collected:
    """Rows of the table and what the user should hear about the rest."""

    workers: int = 0
    """Threads that decode."""
    folders: list[Path] = field(default_factory=list)
    """The folders of the splits, the one that says which classes there are first."""
    keys: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, finds: Finds, label: int, part: Part) -> None:
        """Add what a walk met, all with one label (-1 for none) and part."""
        self.keys += finds.pictures.keys()
        self.paths += finds.pictures.values()
        self.labels += [label] * len(finds.pictures)
        self.parts += [part] * len(finds.pictures)
        self.unused += finds.unused
        self.links += finds.links

    def drop_unreadable(self, *, refuse: bool) -> None:
        """Decode every picture; leave the unreadable ones out with a note each.

        Args:
            refuse: raise instead.

        Raises:
            DataError: `refuse`, and some can't be read; one message each.
        """
        faults = picture_faults(self.paths, self.workers)
        bad = [place for place, fault in enumerate(faults) if fault is not None]
        if not bad:
            return
        if refuse:
            messages = [
                f"can't read picture {shown(self.paths[place])}: {faults[place]}" for place in bad
            ]
            way_out = f"replace or remove the unreadable pictures ({len(bad)})"
            raise DataError([*messages, f"{way_out}, or leave them out: --on-bad-image skip"])
        self.notes += [f"skipped {self.keys[place]}: {faults[place]}" for place in bad]
        self.notes.append(f"unreadable pictures skipped: {len(bad)} of {len(self.paths)}")
        good = [place for place, fault in enumerate(faults) if fault is None]
        self.keys = [self.keys[place] for place in good]
        self.paths = [self.paths[place] for place in good]
        self.labels = [self.labels[place] for place in good]
        self.parts = [self.parts[place] for place in good]

    def table(self, classes: tuple[str, ...]) -> ImageTable:
        """The table; `digest` hashes the bytes of a file."""
        paths = tuple(self.paths)
        workers = self.workers

        def read(rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
            return read_pictures([paths[row] for row in rows], size, workers)

        def digest(row: int) -> str:
            return hashlib.sha256(paths[row].read_bytes()).hexdigest()

        return ImageTable(
            classes=classes,
            keys=tuple(self.keys),
            labels=np.array(self.labels, dtype=np.int64),
            parts=np.array(self.parts, dtype=np.str_),
            read=read,
            digest=digest,
            notes=(*self._summary(classes), *self.notes),
        )

    def _summary(self, classes: tuple[str, ...]) -> list[str]:
        counts = {part: self.parts.count(part) for part in get_args(Part)}
        told = ", ".join(f"{part} {count}" for part, count in counts.items() if count)
        lines = [f"{len(classes)} classes ({some(classes)}); pictures: {told}"]
        if self.ignored:
            lines.append(f"ignored folders: {some(self.ignored)}")
        if self.unused:
            lines.append(
                f"files not used, {len(self.unused)} (no picture's extension, or outside the "
                f"class folders): {some(self.unused)}"
            )
        if self.links:
            lines.append(
                "links not followed (they lead into another split, or in a circle): "
                f"{some(self.links)}"
            )
        return lines
