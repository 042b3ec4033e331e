"""Every exception that ssl-toolkit raises on purpose.

ToolkitError                  exit status 1
├── UserError                 exit status 2: something the user can put right
│   ├── ConfigError           a key, flag or value of the configuration
│   ├── PluginError           an algorithm, augmenter, backbone or data set that can't be used
│   ├── DataError             images, labels, splits
│   └── ModelError            weights, checkpoints, run folders, devices
└── TrainingError             training failed while running (for example a non-finite loss)

The command line prints each message as one line that starts with ``error:``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import ClassVar


class ToolkitError(Exception):
    """An expected failure, reported in one or several sentences.

    Args:
        messages: One message, or several when several faults were found at once.
    """

    exit_status: ClassVar[int] = 1
    already_reported: bool = False
    """True if another process of the same run reports it to the user."""

    def __init__(self, messages: str | Sequence[str]) -> None:
        self.messages: tuple[str, ...] = (
            (messages,) if isinstance(messages, str) else tuple(messages)
        )
        super().__init__("\n".join(self.messages))


class UserError(ToolkitError):
    """The user's command, configuration, plugin choice, device or data is wrong."""

    exit_status = 2


class ConfigError(UserError):
    """A key, flag or value of the configuration is wrong."""


class PluginError(UserError):
    """A plugin is unknown, broken or claimed by two distributions."""


class DataError(UserError):
    """Images, labels or splits are missing or wrong."""


class ModelError(UserError):
    """Weights, a checkpoint, a run folder or a device can't be used."""


class TrainingError(ToolkitError):
    """Training failed while running."""


_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # invisible, but letters of some scripts and pictographs need them


def visible(text: str) -> str:
    r"""Escape control characters and line breaks as Python does, for a terminal or a log.

    Names of classes, files and plugins and the texts of foreign errors may hold anything.

    >>> print(visible("\x1b[31mred\n"))
    \x1b[31mred\n
    """
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in _INVISIBLE and c not in _JOINERS
        else c
        for c in text
    )


def visible_lines(text: str) -> str:
    """Return a text with `visible` applied to each line."""
    return "\n".join(map(visible, text.split("\n")))


def one_line(text: str) -> str:
    """Return `visible` text, with every run of white space replaced by a space."""
    return visible(" ".join(text.split()))
