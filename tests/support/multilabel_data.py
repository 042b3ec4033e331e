"""Small images with colored squares: several classes per image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COLORS = ("red", "green", "blue")


def make_manifest(folder: Path, count: int = 60, test: int = 20, hidden: int = 0) -> Path:
    """Write images and ``images.csv``; return the path to it.

    Args:
        folder: Where.
        count: Number of images.
        test: How many of them are test images.
        hidden: How many of them have no label.
    """
    draws = np.random.default_rng(0)
    lines = ["path,label,split"]
    (folder / "images").mkdir(parents=True)
    for number in range(count):
        pixels = draws.integers(0, 60, (16, 16, 3)).astype(np.uint8)
        names = []
        for channel, (name, share) in enumerate(zip(COLORS, (0.5, 0.4, 0.3), strict=True)):
            if draws.random() < share:
                top, left = draws.integers(0, 8, 2)
                pixels[top : top + 8, left : left + 8, channel] += 170
                names.append(name)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        label = "" if number >= count - hidden else "|".join(names) or "|"
        split = "test" if number < test else ""
        lines.append(f"images/{number}.png,{label},{split}")
    path = folder / "images.csv"
    path.write_text("\n".join(lines) + "\n")
    return path
