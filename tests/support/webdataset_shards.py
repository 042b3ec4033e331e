"""Write shards, and yield their samples."""

from __future__ import annotations

import io
import tarfile

from tiny_images import encoded


def shard(path, members, mode="w"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def samples(count, *, start=0, labeled=True):
    for number in range(start, start + count):
        yield f"{number:04d}.png", encoded(number)
        if labeled:
            yield f"{number:04d}.cls", f"{number % 2}".encode()
