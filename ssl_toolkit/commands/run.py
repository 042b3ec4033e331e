"""``ssl-toolkit run``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ssl_toolkit.commands.options import QUIET, VERBOSE, configuration_options, toolkit_command
from ssl_toolkit.commands.screen import echo, echo_data, warn_of_clashes

if TYPE_CHECKING:
    from ssl_toolkit.stages.config import StagesConfig


@toolkit_command
@configuration_options()
@click.option("--overwrite", is_flag=True, help="Replace an existing run in --output.")
@click.option(
    "--continue",
    "resume",
    is_flag=True,
    help="Resume the run in --output if its configuration is the same.",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration and stop.")
@QUIET
@VERBOSE
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
    prints all other settings. If a file has stages, run them one after the other: each can start
    from the weights and the pseudo labels of earlier ones.
    """
    from ssl_toolkit.config.loading import load_config
    from ssl_toolkit.config.yaml import find_config
    from ssl_toolkit.stages.config import has_stages, load_stages

    paths = [find_config(name) for name in files]
    if has_stages(paths):
        return _run_stages(load_stages(paths, flags, sets), overwrite, resume, dry_run, quiet)
    config = load_config(paths, flags, sets)
    warn_of_clashes(config.settings)
    if dry_run:
        from ssl_toolkit.config import yaml
        from ssl_toolkit.config.sections import ImbalanceSettings
        from ssl_toolkit.engine.defaults import resolve_config
        from ssl_toolkit.engine.multilabel import check_task
        from ssl_toolkit.engine.splitting import drawn_split
        from ssl_toolkit.recipes import find_recipe

        resolved = resolve_config(config)[0]
        check_task(resolved.settings)
        echo_data(yaml.dump(resolved.tree()))
        if (settings := resolved.settings).recipe is not None:
            echo(f"# {find_recipe(settings.recipe).describe(settings.scale)}")
        for key, value in resolved.run_defaults().items():
            echo(f"# {key}: {value} is a run default of {resolved.declaring}")
        drawn = resolved.settings
        if drawn.imbalance != ImbalanceSettings() or drawn.strangers.data is not None:
            for note in drawn_split(drawn).notes:
                echo(f"# {note}")
        if config.settings.minutes is not None:
            echo("note: --minutes chooses image size, views and steps at the start", err=True)
        return 0

    from ssl_toolkit.console import Console
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.runs.train import train

    console = Console(quiet=quiet, verbose=verbose)
    outcome = train(config, overwrite=overwrite, resume=resume, console=console)
    return STATUS.get(outcome.signal, 0)


def _run_stages(
    config: StagesConfig, overwrite: bool, resume: bool, dry_run: bool, quiet: bool
) -> int:
    from ssl_toolkit.console import Console
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.stages.run import check_stages, run_stages

    warn_of_clashes(*(stage.config.settings for stage in config.stages))
    if dry_run:
        from ssl_toolkit.config import yaml

        check_stages(config, Console(quiet=True))
        echo_data(yaml.dump(config.tree()))
        return 0
    console = Console(quiet=quiet)
    result = run_stages(config, overwrite=overwrite, resumed=resume, console=console)
    return STATUS[result.signal] if result.signal else 0
