"""Text for messages: paths and lists of names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def display_path(path: Path) -> str:
    """A path as text for people, see `display_text`."""
    return display_text(str(path))


def display_text(name: str) -> str:
    """A file name as the text its bytes mean in UTF-8, whatever the locale says they are.

    Bytes that are no UTF-8 show as a backslash, x and their value.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def summarize(names: Sequence[str], most: int = 10) -> str:
    """Names for one line of a message: the first few, and how many more there are."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"


def duration(seconds: float) -> str:
    """A time as ``2 h 5 min``, ``3 min 20 s`` or ``7 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
