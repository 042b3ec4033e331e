"""Print the output of commands, with control characters escaped on a terminal."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import Any

import click

from ssl_toolkit.config.settings import Settings
from ssl_toolkit.errors import visible, visible_lines


def echo(text: object, *, err: bool = False) -> None:
    """Print one line, its controls escaped."""
    click.echo(visible(str(text)), err=err)


def echo_wrapped(text: str, indent: int, *, first: int = 0) -> None:
    """Print a paragraph, wrapped at the width of the terminal; unwrapped in a pipe or file.

    Args:
        text: The paragraph, without line breaks.
        indent: Number of spaces before each line but the first.
        first: Number of spaces before the first line.
    """
    # COLUMNS has precedence over the terminal; without both, lines stay whole for grep.
    width = shutil.get_terminal_size((sys.maxsize, 24)).columns
    wrapped = textwrap.wrap(
        visible(text),
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    click.echo("\n".join(wrapped))


def echo_json(value: Any) -> None:
    """Print JSON; what is not printable is escaped as JSON escapes it, so nothing is lost."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    click.echo("\n".join(map(_escaped, text.split("\n"))))


def echo_data(text: str) -> None:
    """Print lines for the next program as they are; on a terminal their controls are escaped."""
    click.echo(visible_lines(text) if sys.stdout.isatty() else text, nl=False)


def warn_of_clashes(*settings: Settings) -> None:
    """Warn on stderr if a foreign distribution claims the name of a built-in plugin in use."""
    from ssl_toolkit import registry

    for group, name in dict.fromkeys(plugin for one in settings for plugin in one.plugins):
        if entries := registry.clashes(group).get(name):
            echo(f"warning: {clash(name, [e.distribution for e in entries])}", err=True)


def clash(name: str, distributions: list[str]) -> str:
    """Return the line that reports a name with several owners."""
    from ssl_toolkit.registry import BUILT_IN

    first, *others = distributions
    if first == BUILT_IN:
        return (
            f"{name!r} of {BUILT_IN} is used; {', '.join(others)} claims the name too "
            f"(write {others[0]}:{name} for that one)"
        )
    return f"{name!r} is claimed by {' and '.join(distributions)}; write {first}:{name} or so"


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if visible(c) == c else json.dumps(c)[1:-1] for c in line)
