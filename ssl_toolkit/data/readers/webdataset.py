"""WebDataset shards: tar files whose members with one name make a sample.

``cat/0001.jpg`` is an image; ``cat/0001.cls``, ``cat/0001.json`` or ``cat/0001.txt`` beside it
holds its label. Nothing is extracted to the disk, and no link is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ssl_toolkit.data.cache import cache_folder
from ssl_toolkit.data.class_names import class_of
from ssl_toolkit.data.images.archives import tar_path
from ssl_toolkit.data.images.files import IMAGE_SUFFIXES
from ssl_toolkit.data.images.kinds import head_of, kind_of_name, named_kind
from ssl_toolkit.data.label_values import label_text
from ssl_toolkit.data.readers.folders import left_by_tools
from ssl_toolkit.data.readers.image_files import TableBuilder, unused_notes
from ssl_toolkit.data.readers.manifests import fill, key_and_split
from ssl_toolkit.data.readers.rows import LABEL_LENGTH, Record, RowErrors
from ssl_toolkit.errors import DataError
from ssl_toolkit.files import file_stamp, write_text
from ssl_toolkit.text import display_path, summarize

LABEL_SUFFIXES = (".cls", ".json", ".txt")
"""Extensions of members with a label, in order of precedence."""

Member = tuple[str, int, int]
"""Name, offset and length of an image in a tar file."""

Index = tuple[list[tuple[str, list[Member], str]], list[str]]
"""Of each sample its name, its images and its label (empty for none); and unused members."""

_INDEX_FORMAT = "3"
_JSON_LABELS = ("label", "cls", "class")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gz, bz2, xz, zst
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)(\.[^/]*)", re.DOTALL)


@dataclass
class Sample:
    """The members of a shard with one name."""

    images: list[Member] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """By suffix; empty text for none."""
    others: list[str] = field(default_factory=list)
    """Names of members that may be images but can't be part of a sample."""

    @property
    def label(self) -> str:
        """The label of the first suffix that has one, as text; empty for none."""
        return next((self.labels[end] for end in LABEL_SUFFIXES if self.labels.get(end)), "")


def read_shards(shards: Sequence[Path], top: Path, rows: TableBuilder) -> tuple[str, ...]:
    """Add the images of tar files; reads headers and labels, no image, and each shard once.

    The index is cached. A shard whose name, or whose folder's, starts
    with a split's (``train-000.tar``) belongs to it; others are the pool.

    Args:
        shards: Uncompressed tar files.
        top: What keys are relative to.
        rows: Takes the images.

    Returns:
        The classes, the labels as text, sorted.

    Raises:
        DataError: A shard can't be read or leads outside, a label is none, or fewer than two
            classes carry labels.
    """
    bad = RowErrors(display_path(top), "sample")
    return fill(_records(shards, top, bad, rows), os.path.abspath(top), bad, rows)


def _records(
    shards: Sequence[Path], top: Path, bad: RowErrors, rows: TableBuilder
) -> Iterator[Record]:
    number = 0
    dotted: list[str] = []
    for shard in shards:
        where, split = key_and_split(shard, top)
        samples, unused = _indexed(shard)
        for name in unused:
            (dotted if _has_dots(name) else rows.unused).append(f"{where}/{name}")
        for stem, images, label in samples:
            if not images:
                rows.unused.append(f"{where}/{stem}")
                continue
            number += 1
            if len(images) > 1:
                bad.add(number, f"{where}/{stem} has {len(images)} images; one is right")
                continue
            ((name, offset, length),) = images
            rows.paths.append(tar_path(shard, offset, length, name))
            yield number, f"{where}/{name}", class_of(label), split
    if dotted:
        rows.notes.append(f"images not used, {len(dotted)}: {_dots(dotted)}")
    if not number:
        why = _dots(dotted) if dotted else "; ".join(unused_notes(rows.unused, "no image's name"))
        raise DataError(
            f"{display_path(top)} has no images that can be read: {why or 'it is empty'}"
        )


def _has_dots(name: str) -> bool:
    """Return True if a member would be an image without a second dot in its name."""
    match = _NAME.fullmatch(name)
    return (
        match is not None
        and match[2].count(".") > 1
        and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
    )


def _dots(names: Sequence[str]) -> str:
    return (
        f"their names have two dots ({summarize(names)}), and in a shard the name of a sample "
        "ends at the first one; rename them, such as 22.05.png to 22_05.png, and their labels alike"
    )


def _indexed(shard: Path) -> Index:
    """Return the index of a shard from the cache; scan the shard if it has none, or a damaged one.

    It is identified by path and `file_stamp` of the shard. If it can't be written, the shard is
    scanned at every start.
    """
    try:
        name = f"{_INDEX_FORMAT}\0{os.path.abspath(shard)}\0{file_stamp(shard)}"
        path = cache_folder("shards") / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.json"
    except OSError:  # the scan reports a shard that can't be read
        return _scan(shard)
    with contextlib.suppress(OSError, ValueError):
        checksum, _, text = path.read_text(encoding="ascii").partition("\n")
        if checksum == hashlib.sha256(text.encode()).hexdigest():
            os.utime(path)  # the time of its last use
            samples, unused = json.loads(text)
            return samples, unused
    index = _scan(shard)
    text = json.dumps(index, ensure_ascii=True, separators=(",", ":"))
    with contextlib.suppress(OSError):
        write_text(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
    return index


def _scan(shard: Path) -> Index:
    """Return the samples of a tar file; reads headers and labels, no image.

    Raises:
        DataError: It can't be read, a label is none, or a name leads outside.
    """
    samples: dict[str, Sample] = {}
    unused: list[str] = []
    where = display_path(shard)
    try:
        with tarfile.open(shard, "r:", tarinfo=_Header) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all headers in memory
                name = os.path.normpath(member.name)
                if name.startswith(("/", "..")) or "\0" in name:
                    raise DataError(f"{where} has a member that leads outside: {member.name!r}")
                if member.isdir() or any(map(left_by_tools, name.split("/"))):
                    continue
                match = _NAME.fullmatch(name)
                if not match or not member.isreg() or member.issparse():
                    unused.append(name)
                    continue
                member.name = name
                _add(samples.setdefault(match[1], Sample()), match[2].lower(), member, archive)
            if not hasattr(archive, "whole"):
                raise tarfile.ReadError("it ends early, without the mark of its end")
    except tarfile.TarError as error:
        if kind := named_kind(head_of(shard)):
            raise DataError(f"can't read the shard {where}: {kind}") from None
        if head_of(shard).startswith(_COMPRESSED):
            raise compressed([shard]) from None
        raise DataError(f"can't read the shard {where}: damaged ({error})") from None
    except OSError as error:
        raise DataError(f"can't read the shard {where}: {error.strerror or error}") from None
    result = []
    for stem, sample in samples.items():
        if sample.images or not sample.others:  # beside an image others are side members
            result.append((stem, sample.images, sample.label))
        else:
            unused += sample.others
    return result, unused


def is_compressed(path: Path) -> bool:
    """Return True if the name is that of a compressed tar file."""
    return re.search(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz)$", path.name.lower()) is not None


def compressed(shards: Sequence[Path]) -> DataError:
    """Return the error for compressed shards, with the way out."""
    names = summarize([display_path(shard) for shard in shards])
    return DataError(
        f"can't read the shard {names}: compressed. Images are read from their position in a "
        f"plain .tar, and are compressed themselves; unpack it (such as gunzip "
        f"{display_path(shards[0])}) into a file that ends in .tar"
    )


_MORE = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _Header(tarfile.TarInfo):
    """Distinguish the end of the archive from a truncated or corrupt header, unlike tarfile.

    A header that says that a long name follows, or more about a member, is believed up to a
    length: tarfile would read it whole.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _MORE and header.size > LABEL_LENGTH:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            tarfile_.whole = True  # type: ignore[attr-defined]
            raise


def _add(sample: Sample, suffix: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    """Put a member into its sample; reads it when it holds a label."""
    if suffix in IMAGE_SUFFIXES:
        sample.images.append((member.name, member.offset_data, member.size))
    elif suffix in LABEL_SUFFIXES:
        sample.labels[suffix] = _label(suffix, member, archive)
    elif _has_dots(member.name) or kind_of_name(member.name):
        sample.others.append(member.name)


def _label(suffix: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> str:
    where = f"the label {member.name} of a shard"
    if member.size > LABEL_LENGTH:
        raise DataError(f"{where} has {member.size:,} bytes; a label is a number or a name")
    try:
        file = archive.extractfile(member)
        assert file is not None
        text = file.read().decode("utf-8-sig").strip()
        if suffix != ".json":
            return text
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is damaged: {error}") from None
    if isinstance(value, dict):
        value = next((value[key] for key in _JSON_LABELS if key in value), None)
    label = label_text(value)
    if label is None:
        raise DataError(f"{where} is neither a text nor a whole number")
    return label.strip()
