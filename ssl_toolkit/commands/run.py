"""``ssl-toolkit run``."""

from __future__ import annotations

from typing import Any

import click

from ssl_toolkit.commands.flags import add_options, common_options, configuration_options
from ssl_toolkit.commands.screen import echo, echo_data


@click.command(short_help="Train an algorithm and test it.")
@configuration_options()
@click.option("--overwrite", is_flag=True, help="Replace the run that is in --output.")
@click.option(
    "--continue", "proceed", is_flag=True, help="Go on with this very run if it is in --output."
)
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration and stop.")
@add_options(common_options)
def command(
    files: tuple[str, ...],
    sets: tuple[str, ...],
    overwrite: bool,
    proceed: bool,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> int:
    """Train an algorithm on images of which a few are labeled, and test it.

    Without --data and --dataset it trains on handwritten digits that come with the package.
    Everything else that can be set stands in the output of --dry-run.
    """
    from ssl_toolkit.config.loading import load_config
    from ssl_toolkit.config.locations import find_config

    config = load_config([find_config(name) for name in files], flags, sets)
    tell_clashes(config.settings.model_dump())
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
    outcome = train(config, overwrite=overwrite, proceed=proceed, console=console)
    return STATUS.get(outcome.signal, 0)


def tell_clashes(*settings: dict[str, Any]) -> None:
    """Warn on stderr where a foreign distribution claims the name of a built-in in use."""
    from ssl_toolkit import registry

    chosen = {
        "algorithms": {own["algo"] for own in settings},
        "backbones": {own["backbone"] for own in settings},
        "datasets": {own["dataset"] for own in settings},
        "loggers": {name for own in settings for name in own["loggers"]},
        "augmenters": {own["augment"][kind] for own in settings for kind in ("weak", "strong")},
    }
    for group, names in chosen.items():
        for name, found in registry.clashes(group).items():
            if name in names:
                echo(f"warning: {clash(name, [e.distribution for e in found])}", err=True)


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
