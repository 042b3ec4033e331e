"""Tiny pictures for the tests of readers."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from ssl_toolkit.interfaces import ImageTable


def encoded(grey: int, kind: str = "PNG") -> bytes:
    """A picture of 4 x 4 pixels of one grey level."""
    file = io.BytesIO()
    Image.new("L", (4, 4), grey).save(file, kind)
    return file.getvalue()


def put(path: Path, grey: int = 100) -> Path:
    """Write such a picture; its content is PNG whatever its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(grey))
    return path


def rows_of(table: ImageTable) -> dict[str, tuple[str, str]]:
    """Part and class (empty for none) by key."""
    return {
        key: (str(part), table.classes[label] if label >= 0 else "")
        for key, part, label in zip(table.keys, table.parts, table.labels, strict=True)
    }
