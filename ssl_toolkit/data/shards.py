"""WebDataset shards: tar files whose members with one name make a sample.

``cat/0001.jpg`` is a picture; ``cat/0001.cls``, ``cat/0001.json`` or ``cat/0001.txt`` beside it
holds its label. Nothing is extracted to the disk, and no link is followed.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ssl_toolkit.data.collected import Collected
from ssl_toolkit.data.manifests import fill, part_of
from ssl_toolkit.data.packed import tar_path
from ssl_toolkit.data.pictures import PICTURE_SUFFIXES, shown, text_of
from ssl_toolkit.data.records import BadRows, Record, label_text
from ssl_toolkit.errors import DataError

LABEL_SUFFIXES = (".cls", ".json", ".txt")
"""Members that hold a label, the one that is believed first."""

_JSON_LABELS = ("label", "cls", "class")
_LABEL_BYTES = 2**20
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)(\.[^/]*)", re.DOTALL)


@dataclass
class Sample:
    """The members of a shard with one name."""

    pictures: list[tarfile.TarInfo] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """By suffix; empty text for none."""

    @property
    def label(self) -> str:
        """Of the suffix that is believed first, as text; empty for none."""
        return next((self.labels[end] for end in LABEL_SUFFIXES if self.labels.get(end)), "")


def read_shards(shards: Sequence[Path], top: Path, rows: Collected) -> tuple[str, ...]:
    """Add the pictures of tar files; reads headers and labels, no picture.

    A shard whose name, or whose folder's, begins with a split's (``train-000.tar``) belongs to it;
    others are the pool.

    Args:
        shards: uncompressed tar files.
        top: what keys are relative to.
        rows: takes the pictures.

    Returns:
        The classes, the labels as text, sorted.

    Raises:
        DataError: a shard can't be read or leads outside, a label is none, or fewer than two
            classes carry labels.
    """
    bad = BadRows(shown(top), "sample")
    return fill(_records(shards, top, bad, rows), os.path.abspath(top), bad, rows)


def _records(shards: Sequence[Path], top: Path, bad: BadRows, rows: Collected) -> Iterator[Record]:
    number = 0
    for shard in shards:
        where = text_of(os.path.relpath(shard, top)) if shard != top else text_of(shard.name)
        split = part_of(shard.name) or part_of(shard.parent.name if shard != top else "")
        samples: dict[str, Sample] = {}
        for stem, suffix, member, archive in members(shard, rows):
            add_member(samples.setdefault(stem, Sample()), suffix, member, archive)
        for stem, sample in samples.items():
            if not sample.pictures:
                rows.unused.append(f"{where}/{stem}")
                continue
            number += 1
            if len(sample.pictures) > 1:
                bad.add(number, f"{where}/{stem} has {len(sample.pictures)} pictures; one is right")
                continue
            (member,) = sample.pictures
            rows.paths.append(tar_path(shard, member.offset_data, member.size, member.name))
            yield number, f"{where}/{member.name}", sample.label, split


def members(
    shard: Path, rows: Collected | None, mode: str = "r:"
) -> Iterator[tuple[str, str, tarfile.TarInfo, tarfile.TarFile]]:
    """The regular files of a tar file: name without suffixes, suffixes, header, archive.

    The content is read from the last one, at once or never. Hidden files are passed over.

    Args:
        shard: the file.
        rows: takes the names of members that aren't used.
        mode: of `tarfile.open`; ``r|*`` reads once from start to end, packed or not.

    Raises:
        DataError: it can't be read, or has a name that leads outside or a link.
    """
    where = shown(shard)
    try:
        with tarfile.open(shard, mode, tarinfo=_Header) as archive:  # type: ignore[call-overload]
            while (member := archive.next()) is not None:
                archive.members = []  # tarfile would keep all headers in memory
                name = os.path.normpath(member.name)
                if name.startswith(("/", "..")) or "\0" in name:
                    raise DataError(f"{where} has a member that leads outside: {member.name!r}")
                if member.isdir() or name[0] == "." or "/." in name or "__MACOSX" in name:
                    continue
                match = _NAME.fullmatch(name)
                if not match or not member.isreg() or member.issparse():
                    if rows is not None:
                        rows.unused.append(f"{text_of(shard.name)}/{name}")
                    continue
                member.name = name
                yield match[1], match[2].lower(), member, archive
            if not hasattr(archive, "whole"):
                raise tarfile.ReadError("it ends early, without the mark of its end")
    except tarfile.TarError as error:
        packed = mode == "r:" and _is_packed(shard)
        reason = "compressed; unpack it to a plain .tar" if packed else f"damaged ({error})"
        raise DataError(f"can't read the shard {where}: {reason}") from None
    except OSError as error:
        raise DataError(f"can't read the shard {where}: {error.strerror or error}") from None


class _Header(tarfile.TarInfo):
    """Tells an end from a cut or garbled header, which tarfile takes for one."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            tarfile_.whole = True  # type: ignore[attr-defined]
            raise


def add_member(
    sample: Sample, suffix: str, member: tarfile.TarInfo, archive: tarfile.TarFile
) -> None:
    """Put a member into its sample; reads it when it holds a label.

    Raises:
        DataError: the label is none.
    """
    if suffix in PICTURE_SUFFIXES:
        sample.pictures.append(member)
    elif suffix in LABEL_SUFFIXES:
        sample.labels[suffix] = _label(suffix, member, archive)


def content_of(member: tarfile.TarInfo, archive: tarfile.TarFile) -> bytes:
    """The bytes of a regular member."""
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _label(suffix: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> str:
    where = f"the label {member.name} of a shard"
    if member.size > _LABEL_BYTES:
        raise DataError(f"{where} has {member.size:,} bytes; a label is a number or a name")
    try:
        text = content_of(member, archive).decode("utf-8-sig").strip()
        if suffix != ".json":
            return text
        told = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is damaged: {error}") from None
    if isinstance(told, dict):
        told = next((told[key] for key in _JSON_LABELS if key in told), None)
    label = label_text(told)
    if label is None:
        raise DataError(f"{where} is neither a text nor a whole number")
    return label


def _is_packed(shard: Path) -> bool:
    with shard.open("rb") as file:
        return file.read(6).startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
