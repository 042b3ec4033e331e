"""Colored shapes, rendered on access at any size."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit import Dataset, DatasetDefaults, ImageTable

CLASSES = ("circle", "cross", "ring", "square", "triangle")
IMAGES = 1500
TEST = 300
"""Of these images, the last ones are the test split."""


@final
class Shapes(Dataset):
    """1,500 images of five shapes in random colors, sizes and positions; nothing to download.

    An image depends only on its index, so it is the same on every machine. It is rendered at the
    requested size.
    """

    api_version = (1, 0)
    defaults = DatasetDefaults(
        image_size=24, backbone="conv4_32", batch_size=32, labels_per_class=4, val_fraction=0.1
    )

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Return the table of all images; `root` only adds a note, `download` has no effect."""
        rows = np.arange(IMAGES)
        return ImageTable(
            classes=CLASSES,
            keys=tuple(f"shapes/{row:04d}" for row in rows),
            labels=(rows % len(CLASSES)).astype(np.int64),
            splits=np.where(rows < IMAGES - TEST, "pool", "test"),
            read=lambda chosen, size: np.stack([draw(int(row), size) for row in chosen]),
            digest=lambda row: f"shapes {row}",
            notes=() if root is None else ("shapes are rendered; --root is not used",),
        )


def draw(row: int, size: int) -> NDArray[np.uint8]:
    """Render the image of a row.

    Args:
        row: index from 0; the class is the remainder modulo the number of classes.
        size: side in pixels.

    Returns:
        (size, size, 3) uint8.
    """
    random = np.random.default_rng(row)
    radius = random.uniform(0.2, 0.4)
    middle = random.uniform(radius, 1 - radius, 2)
    back, front = random.uniform(0, 0.4, 3), random.uniform(0.6, 1, 3)
    centers = (np.arange(size) + 0.5) / size
    x, y = (centers[None] - middle[0]) / radius, (centers[:, None] - middle[1]) / radius
    # Positive inside; the edge is blended over one pixel, which is `step` wide.
    inside = _inside(CLASSES[row % len(CLASSES)], x, y)
    step = 1 / (size * radius)
    share = np.clip(0.5 + inside / step, 0, 1)[..., None]
    grain = random.normal(0, 0.03, (size, size, 1))
    return (255 * np.clip(back + (front - back) * share + grain, 0, 1)).astype(np.uint8)


def _inside(name: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the approximate distance to the edge in radii: x (1, size) to the right, y down."""
    if name == "circle":
        return 1 - np.hypot(x, y)
    if name == "ring":
        return 0.25 - np.abs(np.hypot(x, y) - 0.7)
    if name == "square":
        return 0.8 - np.maximum(abs(x), abs(y))
    if name == "triangle":
        return np.minimum(0.6 - y, (y + 0.9) / 2 - abs(x))
    bars = np.maximum(0.25 - abs(x), 0.25 - abs(y))
    return np.minimum(bars, 0.9 - np.maximum(abs(x), abs(y)))
