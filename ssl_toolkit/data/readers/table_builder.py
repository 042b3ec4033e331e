"""Collect image files into an `ImageTable`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np

from ssl_toolkit.config.settings import Fit
from ssl_toolkit.data.cache.format import Progress
from ssl_toolkit.data.cache.image_files import (
    ImageFiles,
    RelativePaths,
    skipped,
    unreadable,
    with_files,
)
from ssl_toolkit.data.images.files import image_faults
from ssl_toolkit.data.packed_strings import PackedStrings
from ssl_toolkit.data.readers.file_tree import FileTree, unused_notes
from ssl_toolkit.interfaces import ImageTable, Part
from ssl_toolkit.text import summarize


@dataclass
class TableBuilder:
    """Rows of the table, and notes on the files that are not used."""

    workers: int = 0
    """Threads that decode."""
    size: int | None = None
    """Side in pixels at which images are decoded into the cache; None: only verified."""
    progress: Progress | None = None
    """Called while they are decoded."""
    lazily: bool = False
    """True to open no image; `verify` or reading them will."""
    fit: Fit = "crop"
    """See `images.fit_image`."""
    folders: list[Path] = field(default_factory=list)
    """The folders of the splits, the one that says which classes there are first."""
    keys: PackedStrings = field(default_factory=PackedStrings)
    paths: PackedStrings = field(default_factory=PackedStrings)
    """May be the keys themselves."""
    base: str = ""
    """The folder that relative `paths` are in; empty for the current one."""
    labels: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _files: ImageFiles | None = field(default=None, init=False)

    def add(self, tree: FileTree, label: int, part: Part) -> None:
        """Add the images of a file tree, all with one label (-1 for none) and part."""
        self.keys.extend(tree.images)
        self.paths.extend(map(str, tree.images.values()))
        self.labels += [label] * len(tree.images)
        self.parts += [part] * len(tree.images)
        self.unused += tree.unused
        self.links += tree.links

    def drop_unreadable(self, *, refuse: bool) -> None:
        """Decode every image; leave the unreadable ones out with a note each.

        With a `size` they are decoded into the cache, or known from it. Nothing is done `lazily`.

        Args:
            refuse: raise instead.

        Raises:
            DataError: `refuse`, and some can't be read; one message each.
        """
        files = ImageFiles(RelativePaths(self.paths, self.base), self.workers, self.fit)
        if self.lazily:
            return
        if self.size is None:
            found = image_faults([Path(path) for path in files], self.workers)
            faults = {row: fault for row, fault in enumerate(found) if fault is not None}
        else:
            faults = files.open(self.size, self.progress).faults
        self._files = files
        if not faults:
            return
        if refuse:
            raise unreadable(files, faults)
        self.notes += skipped(self.keys, faults)
        good = [row for row in range(len(files)) if row not in faults]
        self._files = files.drop(faults)
        self.keys = PackedStrings(self.keys[row] for row in good)
        self.labels = [self.labels[row] for row in good]
        self.parts = [self.parts[row] for row in good]

    def table(self, classes: tuple[str, ...]) -> ImageTable:
        """The table; `digest` hashes the bytes of a file."""
        files = self._files
        if files is None:
            files = ImageFiles(RelativePaths(self.paths, self.base), self.workers, self.fit)
        table = ImageTable(
            classes=classes,
            keys=self.keys,
            labels=np.array(self.labels, dtype=np.int64),
            parts=np.array(self.parts, dtype=np.str_),
            notes=(*self._summary(classes), *self.notes),
        )
        return with_files(table, files)

    def _summary(self, classes: tuple[str, ...]) -> list[str]:
        counts = {part: self.parts.count(part) for part in get_args(Part)}
        listed = ", ".join(f"{part} {count}" for part, count in counts.items() if count)
        lines = [f"{len(classes)} classes ({summarize(classes)}); images: {listed}"]
        if self.ignored:
            lines.append(f"ignored folders: {summarize(self.ignored)}")
        lines += unused_notes(self.unused, "no image's extension, or outside the class folders")
        if self.links:
            lines.append(
                "links not followed (they lead into another split, or in a circle): "
                f"{summarize(self.links)}"
            )
        return lines
