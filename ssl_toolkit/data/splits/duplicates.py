"""Find and drop byte-identical images in both training and test, or with different labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.readers.label_sets import label_text
from ssl_toolkit.data.splits.draw import Rows, Split, without_rows
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.text import summarize


class LeakedImage(Part):
    """An image in ``leaks.json``."""

    model_config: ClassVar[ConfigDict] = ConfigDict(serialize_by_alias=True)

    path: str
    part: str
    label: str | None = Field(alias="class")
    """Class name, or names joined by ``|``; None for an image without a label."""
    offends: bool
    """True if ``drop_leaks`` removes the image."""


class LeaksFile(Document):
    """The schema of ``leaks.json``."""

    dropped: bool
    """True if the offending images were removed from the split."""
    groups: list[list[LeakedImage]]
    """Groups of byte-identical images."""


@dataclass(frozen=True)
class Group:
    """Byte-identical images, some of which may be in the wrong part."""

    rows: Rows
    """Two or more rows of the table, ascending."""
    parts: tuple[str, ...]
    labels: tuple[int, ...]
    """Classes, -1 for none."""

    @property
    def conflicting_labels(self) -> bool:
        """True if the images have more than one label."""
        return len({*self.labels} - {-1}) > 1

    @property
    def is_leak(self) -> bool:
        """True if they are in test or validation and elsewhere, or have conflicting labels."""
        parts = {*self.parts}
        return self.conflicting_labels or (
            len(parts) > 1 and not parts.isdisjoint(("test", "validation"))
        )

    @property
    def rows_to_drop(self) -> list[int]:
        """The rows that `drop_leaks` removes.

        If the group contains test images: all others. If it contains validation images: the
        labeled and unlabeled ones. If it has two labels: the labeled ones, because either label
        may be wrong.
        """
        holdout = next((part for part in ("test", "validation") if part in self.parts), "")
        return [
            row
            for row, part in zip(self.rows.tolist(), self.parts, strict=True)
            if (holdout and part not in (holdout, "test"))
            or (self.conflicting_labels and part == "labeled")
        ]


@dataclass(frozen=True)
class Leaks:
    """All groups of byte-identical images that are leaks."""

    groups: tuple[Group, ...] = ()
    dropped: bool = False
    """True if the `rows_to_drop` were removed from the split."""

    def __bool__(self) -> bool:
        return bool(self.groups)

    @property
    def rows_to_drop(self) -> Rows:
        """The rows that `drop_leaks` removes, ascending."""
        return np.array(
            sorted(row for group in self.groups for row in group.rows_to_drop), np.int64
        )

    def warning(self) -> str:
        """Describe all groups in one line."""
        sentences = []
        for holdout, others in (
            ("test", ("labeled", "unlabeled", "pool", "validation")),
            ("validation", ("labeled", "unlabeled", "pool")),
        ):
            leaking = [group for group in self.groups if holdout in group.parts]
            counts = Counter(part for group in leaking for part in group.parts)
            if found := [f"{counts[part]} {part}" for part in others if counts[part]]:
                sentences.append(f"{' and '.join(found)} images are {holdout} images too")
        if conflicting := [group for group in self.groups if group.conflicting_labels]:
            files = sum(len(group.rows) for group in conflicting)
            sentences.append(f"{len(conflicting)} images have conflicting labels ({files} files)")
        way_out = "removed" if self.dropped else "--drop-leaks removes the training side"
        return f"byte-identical images: {'; '.join(sentences)} ({way_out})"

    def file(self, table: ImageTable) -> LeaksFile:
        """Return the content of ``leaks.json``."""
        bad = {*self.rows_to_drop.tolist()}
        groups = [
            [
                {
                    "path": table.keys[row],
                    "part": part,
                    "class": label_text(table, label),
                    "offends": row in bad,
                }
                for row, part, label in zip(
                    group.rows.tolist(), group.parts, group.labels, strict=True
                )
            ]
            for group in self.groups
        ]
        return LeaksFile.model_validate({"dropped": self.dropped, "groups": groups})


def find_leaks(table: ImageTable, parts: NDArray[np.str_]) -> Leaks:
    """Find byte-identical images in test or validation and elsewhere, or with different labels.

    Labeled images that are also in the unlabeled pool are not leaks. Different labels include those
    that training doesn't see.

    Args:
        table: The images.
        parts: (N,) the part of each row, empty for rows that are not used.
    """
    if table.digest is None:
        return Leaks()
    used = np.flatnonzero(parts != "").astype(np.int64)

    def group(rows: Rows) -> Group:
        return Group(rows, tuple(parts[rows].tolist()), tuple(table.labels[rows].tolist()))

    candidates = (rows for rows in _alike(table, used) if group(rows).is_leak)  # few remain
    groups = (group(rows) for rows in _identical(table, candidates))
    leaks = sorted((one for one in groups if one.is_leak), key=lambda one: int(one.rows[0]))
    return Leaks(tuple(leaks))


def same_images(table: ImageTable, rows: Rows) -> list[Rows]:
    """Return groups of byte-identical images among `rows`, by `ImageTable.digest`.

    There are none if the table has no digests. Rows are ascending; groups are sorted by first row.
    """
    if table.digest is None:
        return []
    return sorted(_identical(table, _alike(table, rows)), key=lambda group: int(group[0]))


def split_parts(table: ImageTable, split: Split) -> NDArray[np.str_]:
    """Return the part of every row, (N,); a labeled image that is also in the pool is labeled."""
    parts = np.full(len(table.keys), "", dtype="U10")
    for part in ("unlabeled", "labeled", "validation", "test"):
        parts[getattr(split, part)] = part
    return parts


def _alike(table: ImageTable, rows: Rows) -> Iterator[Rows]:
    """Yield groups of images whose digests start with the same eight bytes, rows ascending."""
    assert table.digest is not None
    files = files_of(table)
    if files is None:
        shorts = np.array([hash(table.digest(row)) for row in rows.tolist()], dtype=np.int64)
    else:
        shorts = files.digests(rows)[:, :8].copy().view(np.int64)[:, 0]
    order = np.argsort(shorts, kind="stable")
    ranked = shorts[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) + 1
    starts = np.append(0, ends[:-1])
    several = ends - starts > 1
    for start, end in zip(starts[several], ends[several], strict=True):
        yield np.sort(rows[order[start:end]])


def _identical(table: ImageTable, groups: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the subsets of each group with equal digests, of two or more images."""
    assert table.digest is not None
    for group in groups:
        by_digest: dict[str, list[int]] = {}
        for row in group.tolist():
            by_digest.setdefault(table.digest(row), []).append(row)
        yield from (np.array(rows, np.int64) for rows in by_digest.values() if len(rows) > 1)


def drop_leaks(table: ImageTable, split: Split, leaks: Leaks) -> tuple[Split, Leaks]:
    """Remove `Leaks.rows_to_drop` from a split, with a note, and mark the leaks as dropped.

    Raises:
        DataError: A class is left without labeled images.
    """
    rows_to_drop = leaks.rows_to_drop
    if not len(rows_to_drop):
        return split, leaks
    changed, empty = without_rows(table, split, rows_to_drop)
    if empty:
        raise DataError(
            f"--drop-leaks leaves no labeled image of {summarize(empty)}; add images there, or "
            "leave --drop-leaks out"
        )
    removed = {
        part: len(getattr(split, part)) - len(getattr(changed, part))
        for part in ("labeled", "unlabeled", "validation")
    }
    listed = ", ".join(f"{count} {part}" for part, count in removed.items() if count)
    note = f"--drop-leaks removed {len(rows_to_drop)} images: {listed}"
    changed = replace(changed, notes=(*split.notes, note))
    return changed, replace(leaks, dropped=True)
