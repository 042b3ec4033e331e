"""Read the pages of the documentation, and do what their blocks say."""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from in_process import call

DOCS = Path(__file__).parents[2] / "docs"


def blocks(text: str, kind: str) -> list[str]:
    """Return the contents of the fenced blocks of a kind, such as ``bash``."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return the lines of the ``bash`` blocks."""
    return [line for block in blocks(text, "bash") for line in block.splitlines()]


def sections(text: str) -> dict[str, str]:
    """Return the text below each heading of any level, up to the next one."""
    _, *parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def matches(quoted: str, printed: str) -> bool:
    """Return True if a line is printed, where ``…`` stands for any text."""
    pattern = re.escape(quoted).replace("…", ".*")
    return any(re.fullmatch(pattern, line) for line in printed.splitlines())


def parse(line: str) -> None:
    """Check that a command of the page is valid."""
    words = shlex.split(line, comments=True)
    name, *arguments = words[words.index("ssl-toolkit") + 1 :]
    module = f"ssl_toolkit.commands.{name.replace('-', '_')}"
    importlib.import_module(module).command.make_context(name, arguments)


def do(line: str, more: Sequence[object] = ()) -> CompletedProcess[str]:
    """Run a command of the page, with the variables before it, and more arguments."""
    words = shlex.split(line, comments=True)
    start = words.index("ssl-toolkit")
    with patch.dict(os.environ, dict(word.split("=", 1) for word in words[:start])):
        return call(*words[start + 1 :], *more)
