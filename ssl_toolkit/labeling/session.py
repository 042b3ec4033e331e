"""The images that a person labels in one sitting: answers, undo, progress; saved at once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ssl_toolkit.data.class_names import class_name, look_alike
from ssl_toolkit.data.packed_strings import index_of
from ssl_toolkit.data.readers.label_sets import classes_in
from ssl_toolkit.data.readers.rows import SEPARATOR
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.labeling.labels_table import LabelsTable
from ssl_toolkit.text import display_path, summarize

MOST_LETTERS = 200
"""Maximum number of characters of a class that is added."""


@dataclass(frozen=True)
class Guess:
    """The class that a model predicts for an image."""

    label: str
    """Empty if nothing predicts one."""
    confidence: float | None = None


class LabelingSession:
    """Answers for a list of images; each is written to the labels file before it returns.

    Methods may be called from several threads.

    Args:
        table: The data.
        rows: Rows of the images to label, in order.
        labels: Labels so far; held by this process.
        classes: Names that can be chosen; those in `labels` are appended.
        guesses: Guess by path.
    """

    def __init__(
        self,
        table: ImageTable,
        rows: Sequence[int],
        labels: LabelsTable,
        classes: Sequence[str],
        guesses: Mapping[str, Guess] | None = None,
    ) -> None:
        self.table: ImageTable = table
        self.rows: Sequence[int] = rows
        self.labels: LabelsTable = labels
        self.lock: threading.RLock = threading.RLock()
        self._classes = [*dict.fromkeys(map(class_name, (*classes, *labels.classes())))]
        self._guesses = guesses or {}
        self._keys = [table.keys[row] for row in rows]
        self._index = {key: index for index, key in enumerate(self._keys)}
        self._earlier = dict(labels.rows)  # the answers of earlier sessions
        self._undo: list[tuple[str, str | None, str]] = []  # key, label before, and label since
        self._added: set[str] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def next_unanswered(self, start: int = 0) -> int:
        """Return the first image from `start` on that is neither labeled nor skipped, then from 0.

        It is the number of images if there is none.
        """
        answered = self.labels.rows
        for index in chain(range(start, len(self)), range(min(start, len(self)))):
            if self._keys[index] not in answered:
                return index
        return len(self)

    def state(self, index: int | None = None) -> dict[str, Any]:
        """Return what the page shows.

        Args:
            index: Of an image; None for the next one without an answer.
        """
        with self.lock:
            if index is None:
                index = self.next_unanswered()
            answers = [label for key, label in self.labels.rows.items() if key in self._index]
            state: dict[str, Any] = {
                "index": index,
                "total": len(self),
                "labeled": sum(map(bool, answers)),
                "skipped": len(answers) - sum(map(bool, answers)),
                "classes": self._classes,
                "several": self.labels.several,
                "can_undo": bool(self._undo) or bool(self._last_earlier()),
                "next": self.next_unanswered(index + 1) if index < len(self) else index,
                "file": display_path(self.labels.path),
            }
            if index < len(self):
                key = self._keys[index]
                guess = self._guesses.get(key, Guess(""))
                state |= {
                    "path": key,
                    "answer": self.labels.rows.get(key),
                    "guess": guess.label,
                    "confidence": guess.confidence,
                }
            return state

    def answer(self, index: int, label: str, *, add: bool = False) -> dict[str, Any]:
        """Save the class of an image; return the state of the next one without an answer.

        Args:
            index: Of the image.
            label: Its class, or classes as `classes_in` reads them; empty to skip it.
            add: True if a class may be a new one.

        Raises:
            DataError: The class is unknown, or can't be added.
            OSError: The file can't be written; the table is as before.
        """
        with self.lock, self._saving():
            if self.labels.several and label:
                names = [self._known(name, add) for name in sorted(classes_in(label))]
                label = SEPARATOR.join(sorted(names, key=self._classes.index)) or SEPARATOR
            elif label:
                label = self._known(label, add)
            key = self._keys[index]
            before = self.labels.rows.get(key)
            if before != label:
                self.labels.put(key, label)
                self._undo.append((key, before, self.labels.rows[key]))
        return self.state(self.next_unanswered(index + 1))

    def undo(self) -> dict[str, Any]:
        """Take back the last answer, also one of an earlier session; return its image's state.

        An answer that another program changed since is kept, and ``kept`` in the state is True.

        Raises:
            DataError: There is none.
            OSError: The file can't be written; the table is as before.
        """
        with self.lock, self._saving():
            while self._undo:
                key, before, since = self._undo.pop()
                if key in self.labels.rows:  # another program may have removed it
                    break
            else:
                key, before = self._last_earlier(), None
                since = self._earlier.get(key, "")
            if not key:
                raise DataError("no answer to undo")
            if self.labels.rows[key] != since:
                return self.state(self._index[key]) | {"kept": True}
            label = self.labels.rows.pop(key)
            if before is not None:
                self.labels.put(key, before)
            names = classes_in(label) if self.labels.several else {label}
            for name in (names & self._added).difference(self.labels.classes()):  # a typing error
                self._classes.remove(name)
                self._added.remove(name)
        return self.state(self._index[key])

    def _last_earlier(self) -> str:
        """Return the image of the last answer of an earlier session that nobody changed since."""
        for key, label in reversed(self.labels.rows.items()):
            if key in self._index and self._earlier.get(key) == label:
                return key
        return ""

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Write the labels at the end of the block; restore them if it fails."""
        self.labels.refresh()
        for label in self.labels.classes():  # another program may have added one
            if label not in self._classes:
                self._classes.append(label)
        rows, before = dict(self.labels.rows), ([*self._classes], [*self._undo], {*self._added})
        try:
            yield
            if [*self.labels.rows.items()] != [*rows.items()]:
                self.labels.write()
        except BaseException:
            self.labels.rows = rows
            self._classes, self._undo, self._added = before
            raise

    def _known(self, name: str, add: bool) -> str:
        """Return the name of a class that can be chosen; append a new one."""
        if name not in self._classes:
            name = class_name(name.strip())
        if name not in self._classes:
            self._check_new(name, add)
            self._classes.append(name)
            self._added.add(name)
        return name

    def _check_new(self, label: str, add: bool) -> None:
        if not add:
            raise DataError(f"{label!r} is no class; add it first")
        if not 0 < len(label) <= MOST_LETTERS or not label.isprintable():
            raise DataError(f"a class has 1 to {MOST_LETTERS} printable characters")
        if alike := look_alike([*self._classes, label]):
            raise DataError(alike[0])


def rows_to_label(table: ImageTable, queue: Sequence[str] | None, where: str = "") -> list[int]:
    """Return the rows of the images to label.

    Args:
        table: The data.
        queue: Their paths in order; None for all images without a label, in an order by hashes, so
            that the first ones are a random sample.
        where: The file of the queue, for messages.

    Raises:
        DataError: Images of the queue are unknown, or validation or test ones.
    """
    if queue is not None:
        rows = index_of(table.keys, queue)
        unknown = [path for path, row in zip(queue, rows.tolist(), strict=True) if row < 0]
        if unknown:
            raise DataError(
                f"{where}: the data has no images {summarize(unknown)}; restore them, or delete "
                "their rows"
            )
        held_out = np.isin(table.splits[rows], ("validation", "test"))
        if held_out.any():
            names = summarize([queue[i] for i in np.flatnonzero(held_out).tolist()])
            raise DataError(f"{where}: validation and test images: {names}")
        return list(dict.fromkeys(rows.tolist()))
    held_out = np.isin(table.splits, ("validation", "test"))
    rows = np.flatnonzero((table.labels < 0) & ~held_out)

    def rank(row: int) -> bytes:
        return hashlib.sha256(f"label\0{table.keys[row]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(rows.tolist(), key=rank)
