"""Cached indices of shards, beside the decoded images, so that a shard is scanned once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ssl_toolkit.data.cache.build import index_root
from ssl_toolkit.files import write_text

Member = tuple[str, int, int]
"""Name, offset and length of an image in a tar file."""

Index = tuple[list[tuple[str, list[Member], str]], list[str]]
"""Of each sample its name, its images and its label (empty for none); and unused members."""

_FORMAT = "2"


def indexed(shard: Path, scan: Callable[[], Index]) -> Index:
    """The index of a shard; made when there is none, or a stale or damaged one.

    It is known by path, length and time of change of the shard, and written whole or not at all.
    If it can't be written, the shard is scanned at every start.

    Args:
        shard: the tar file.
        scan: makes the index; what it raises is raised.
    """
    try:
        found = os.stat(shard)
        name = f"{_FORMAT}\0{os.path.abspath(shard)}\0{found.st_size}\0{found.st_mtime_ns}"
        place = index_root() / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.json"
    except OSError:  # the scan reports a shard that can't be read
        return scan()
    index = _read(place)
    if index is None:
        index = scan()
        text = json.dumps(index, ensure_ascii=True, separators=(",", ":"))
        with contextlib.suppress(OSError):
            write_text(place, f"{_checksum(text)}\n{text}")
    return index


def _read(place: Path) -> Index | None:
    try:
        checksum, _, text = place.read_text(encoding="ascii").partition("\n")
        if checksum != _checksum(text):
            return None
        os.utime(place)  # it is in use
        samples, unused = json.loads(text)
    except (OSError, ValueError):
        return None
    return samples, unused


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
