"""Runs that start from the weights and pseudo labels of earlier ones."""

from __future__ import annotations

from pathlib import Path


def is_stages(folder: Path) -> bool:
    """Return True if a folder contains stages."""
    return (folder / "stages.yaml").is_file()
