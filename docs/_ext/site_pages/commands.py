"""Pages of the command line: every command with its arguments and options, from click."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import click

from site_pages.tables import cell, code, table, toctree
from ssl_toolkit.commands import COMMANDS, LazyGroup


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield each command by its words, such as ``label next``; a group precedes its own."""
    for name in COMMANDS:
        command = importlib.import_module(f"ssl_toolkit.commands.{name.replace('-', '_')}").command
        yield name, command
        if isinstance(command, LazyGroup):
            context = click.Context(command)
            for verb in command.helps:
                inner = command.get_command(context, verb)
                assert inner is not None
                yield f"{name} {verb}", inner


def pages() -> Iterator[tuple[str, str]]:
    """Yield the index and a page for each command; the commands of a group are on its page."""
    rows = [[f"[`ssl-toolkit {name}`]({name}.md)", cell(text)] for name, text in COMMANDS.items()]
    yield (
        "commands/index",
        "# Command line\n\n"
        "`ssl-toolkit COMMAND --help` shows the same texts. The exit status is 0 after success, 2 "
        "if the command, the configuration, a plugin, the device or the data is wrong, 1 after a "
        "failure while running, 130 after Ctrl-C and 143 after SIGTERM.\n\n"
        + table(["command", "effect"], rows)
        + toctree(COMMANDS),
    )
    texts: dict[str, str] = {}
    for words, command in commands():
        name = words.partition(" ")[0]
        level = "#" if name == words else "##"
        texts[name] = texts.get(name, "") + section(words, command, level)
    for name, text in texts.items():
        yield f"commands/{name}", text


def section(words: str, command: click.Command, level: str) -> str:
    """Return the part of a page on one command."""
    context = click.Context(command, info_name=f"ssl-toolkit {words}")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"{level} ssl-toolkit {words}\n", f"```text\nssl-toolkit {words} {usage}\n```\n"]
    parts += [f"{paragraph}\n" for paragraph in _paragraphs(command.help or "")]
    if isinstance(command, LazyGroup):
        rows = [
            [f"[`{verb}`](#ssl-toolkit-{words}-{verb})", cell(text)]
            for verb, text in command.helps.items()
        ]
        parts.append(table(["command", "effect"], rows))
    options = [
        [code(_spelling(one, context)), _with_flags(one.help or "")]
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden
    ]
    parts.append(table(["option", "meaning"], options))
    return "\n".join(parts) + "\n"


def _spelling(option: click.Option, context: click.Context) -> str:
    """Return the names and the placeholder of an option, as the help shows them."""
    record = option.get_help_record(context)
    return record[0] if record else ", ".join(option.opts)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; those that click does not wrap are code."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            yield "```text\n" + paragraph.removeprefix("\b").strip("\n") + "\n```"
        else:
            yield _with_flags(" ".join(paragraph.split()))


def _with_flags(text: str) -> str:
    """Return a help text with its flags as code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`", part) for part in parts[::2]]
    return cell("`".join(parts))
