"""Tiny images for the tests of readers."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from ssl_toolkit.interfaces import ImageTable


def encoded(gray: int, kind: str = "PNG") -> bytes:
    """Return an image of 4 x 4 pixels with one gray level."""
    file = io.BytesIO()
    Image.new("L", (4, 4), gray).save(file, kind)
    return file.getvalue()


def put(path: Path, gray: int = 100) -> Path:
    """Write such an image as PNG, whatever the suffix of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(gray))
    return path


def rows_of(table: ImageTable) -> dict[str, tuple[str, str]]:
    """Return part and class (empty for none) by key."""
    return {
        key: (str(part), table.classes[label] if label >= 0 else "")
        for key, part, label in zip(table.keys, table.splits, table.labels, strict=True)
    }
