"""Text for messages: paths and lists of names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def display_path(path: Path) -> str:
    """Return a path as text for people, see `display_text`."""
    return display_text(str(path))


def display_text(name: str) -> str:
    """Return a file name as the UTF-8 text of its bytes, independent of the locale.

    Bytes that are not UTF-8 appear as a backslash, x and their value.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def summarize(names: Sequence[str], most: int = 10) -> str:
    """Return names for one line of a message: the first few, and the number of the others."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"


def shorten(text: str, most: int) -> str:
    """Return a text of at most `most` characters, truncated with an ellipsis if it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def duration(seconds: float) -> str:
    """Return a time as ``2 h 5 min``, ``3 min 20 s`` or ``7 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def brief(seconds: float) -> str:
    """Return a short time, such as that of a step: ``9 ms``, ``0.42 s``."""
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms" if seconds > 0.001 else f"{1000 * seconds:.1g} ms"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def roughly(seconds: float) -> str:
    """Return a time in a readable unit: ``40 s``, ``7 min``, ``2.5 h``, ``4 days``."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    if hours < 10:
        return f"{hours:.1f} h"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"
