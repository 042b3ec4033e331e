"""Flags of commands, derived from the declarations of the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from pydantic.fields import FieldInfo

from ssl_toolkit.config.declaration import declaration_of, sentence
from ssl_toolkit.config.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

common_options = (
    click.option("--quiet", is_flag=True, help="Show only warnings and results."),
    click.option("--verbose", is_flag=True, help="Show every row of metrics."),
    click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."),
)


def configuration_options(*, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Add a flag for each setting that declares one, ``--config`` and ``--set`` to a command."""
    options = [
        _flag(name, field)
        for name, field in Settings.model_fields.items()
        if declaration_of(field).flag and name not in without
    ]
    options += [
        click.option(
            "--config", "files", multiple=True, metavar="FILE", help="YAML file. Repeatable."
        ),
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any other key. Repeatable."
        ),
    ]
    return add_options(options)


def resume_options(command: Command) -> Command:
    """Add a flag for each setting that `resume` changes."""
    fields = Settings.model_fields.items()
    return add_options([_resume_flag(n, f) for n, f in fields if declaration_of(f).resume_help])(
        command
    )


def add_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[Command], Command]:
    """Return a decorator that adds options in their order."""

    def decorate(command: Command) -> Command:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


def _flag(name: str, field: FieldInfo) -> Callable[[Any], Any]:
    flag, metavar = name.replace("_", "-"), declaration_of(field).metavar
    if bool in (field.annotation, *get_args(field.annotation)):
        return click.option(f"--{flag}/--no-{flag}", default=None, help=sentence(field))
    choices = "|".join(map(str, get_args(field.annotation))) if not metavar else ""
    return click.option(f"--{flag}", metavar=metavar or choices, help=sentence(field))


def _resume_flag(name: str, field: FieldInfo) -> Callable[[Any], Any]:
    declared = declaration_of(field)
    types = {"N": click.IntRange(min=1), "MIN": click.FloatRange(min=0, min_open=True)}
    text = declared.resume_help
    return click.option(
        f"--{name.replace('_', '-')}",
        type=types.get(declared.metavar, click.Path(path_type=Path)),
        metavar=declared.metavar,
        help=f"{text[:1].upper()}{text[1:]} (default: unchanged).",
    )
