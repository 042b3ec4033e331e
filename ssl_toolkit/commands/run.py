"""``ssl-toolkit run``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from pydantic.fields import FieldInfo

from ssl_toolkit.commands.screen import echo, echo_data
from ssl_toolkit.config.declaration import declaration_of, sentence
from ssl_toolkit.config.options import Options
from ssl_toolkit.config.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

common_options = (
    click.option("--quiet", is_flag=True, help="Show only warnings and results."),
    click.option("--verbose", is_flag=True, help="Show every row of metrics."),
    click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."),
)


def configuration_options(
    *models: type[Options], without: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Add a flag for each setting that declares one, ``--config`` and ``--set`` to a command.

    Args:
        models: Other settings of the command, which precede those of a run.
        without: Settings of a run that the command doesn't have.
    """
    fields = {k: v for k, v in Settings.model_fields.items() if k not in without}
    for model in reversed(models):
        fields = {**model.model_fields, **fields}
    options = [_flag(name, field) for name, field in fields.items() if declaration_of(field).flag]
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
    declared, flag = declaration_of(field), name.replace("_", "-")
    if bool in (field.annotation, *get_args(field.annotation)):
        return click.option(f"--{flag}/--no-{flag}", default=None, help=sentence(field))
    metavar = declared.metavar or "|".join(map(str, get_args(field.annotation)))
    text = f"{sentence(field)} Repeatable." if declared.repeatable else sentence(field)
    return click.option(f"--{flag}", metavar=metavar, multiple=declared.repeatable, help=text)


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


@click.command(short_help="Train an algorithm and test it.")
@configuration_options()
@click.option("--overwrite", is_flag=True, help="Replace an existing run in --output.")
@click.option(
    "--continue",
    "resume",
    is_flag=True,
    help="Resume the run in --output if its configuration is the same.",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration and stop.")
@add_options(common_options)
def command(
    files: tuple[str, ...],
    sets: tuple[str, ...],
    overwrite: bool,
    resume: bool,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> int:
    """Train an algorithm on images of which a few are labeled, and test it.

    Without --data and --dataset, train on handwritten digits that come with the package. --dry-run
    prints all other settings.
    """
    from ssl_toolkit.config.loading import load_config
    from ssl_toolkit.config.locations import find_config

    config = load_config([find_config(name) for name in files], flags, sets)
    warn_of_clashes(config.settings)
    if dry_run:
        from ssl_toolkit.config import yaml
        from ssl_toolkit.engine.defaults import resolve_config

        echo_data(yaml.dump(resolve_config(config)[0].tree()))
        if config.settings.minutes is not None:
            echo("note: --minutes chooses image size, views and steps at the start", err=True)
        return 0

    from ssl_toolkit.console import Console
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.runs.train import train

    console = Console(quiet=quiet, verbose=verbose)
    outcome = train(config, overwrite=overwrite, resume=resume, console=console)
    return STATUS.get(outcome.signal, 0)


def warn_of_clashes(*settings: Settings) -> None:
    """Warn on stderr if a foreign distribution claims the name of a built-in plugin in use."""
    from ssl_toolkit import registry

    for group, name in dict.fromkeys(plugin for one in settings for plugin in one.plugins):
        if entries := registry.clashes(group).get(name):
            echo(f"warning: {clash(name, [e.distribution for e in entries])}", err=True)


def clash(name: str, distributions: list[str]) -> str:
    """A clash in words."""
    from ssl_toolkit.registry import BUILT_IN

    first, *others = distributions
    if first == BUILT_IN:
        return (
            f"{name!r} of {BUILT_IN} is used; {', '.join(others)} claims the name too "
            f"(write {others[0]}:{name} for that one)"
        )
    return f"{name!r} is claimed by {' and '.join(distributions)}; write {first}:{name} or so"
