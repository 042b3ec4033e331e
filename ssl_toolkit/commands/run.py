"""``ssl-toolkit run``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import click

from ssl_toolkit.commands.screen import echo, echo_data
from ssl_toolkit.config import default_plugins

FLAGS: tuple[tuple[str, str, str], ...] = (
    ("--algo", "NAME", f"Algorithm (default: {default_plugins.ALGORITHM})."),
    ("--backbone", "NAME", "Registered backbone or any timm model."),
    ("--weights", "FILE", "Weights to start from: safetensors, or .pt of plain tensors."),
    (
        "--dataset",
        "NAME",
        f"Data set by name (default: {default_plugins.DATASET}, included).",
    ),
    (
        "--data",
        "PATH",
        "Your own images: labeled/<class>/, unlabeled/, test/<class>/, or a list.",
    ),
    ("--root", "DIR", "Where the files of a named data set, or the paths of a list, are."),
    ("--labels-per-class", "N", "Labeled images of each class."),
    ("--num-labels", "N", "Labeled images in all, stratified."),
    ("--labels", "FILE", "Which images are labeled: a path a line, or .csv path,label."),
    ("--split", "FILE", "A split.json to use as it is."),
    ("--val-fraction", "F", "Share of each class for validation."),
    ("--test-fraction", "F", "Share of each class for the test."),
    ("--on-bad-image", "error|skip", "What an unreadable image does (default: error)."),
    ("--stream-buffer", "N", "Decode unlabeled images while training, shuffled within N."),
    ("--image-size", "N", "Side of the images in pixels."),
    ("--fit", "crop|pad", "How images become square: cut (default) or padded with white."),
    ("--steps", "N", "Optimizer steps (default: 1000)."),
    ("--eval-every", "N", "Steps between evaluations."),
    ("--log-every", "N", "Steps between rows of metrics."),
    ("--save-every", "N", "Steps between checkpoints (default: each evaluation)."),
    ("--keep-checkpoints", "N", "Number of most recent checkpoints to keep (default: 2)."),
    ("--minutes", "M", "Fit image size and steps to M minutes, measured on this device."),
    ("--time-limit", "MIN", "Minutes after which to save, test what is there, and stop."),
    ("--on-collapse", "stop|warn", "Where training collapses: save and stop, or go on (default)."),
    ("--batch-size", "N", "Labeled images in a batch."),
    ("--eval-batch-size", "N", "Images in a batch of evaluation."),
    ("--lr", "X", "Learning rate (default: 0.002)."),
    ("--seed", "N", "Seed of everything random (default: 0)."),
    ("--profile", "paper|reference", "The paper's formulas, or what its authors' code does."),
    ("--device", "NAME", "auto, cpu, cuda, cuda:N or mps (default: auto)."),
    ("--devices", "N", "Processes that share each batch, one a GPU (default: 1)."),
    ("--precision", "auto|fp32|bf16|fp16", "Arithmetic of the forward (default: auto)."),
    ("--workers", "N", "Threads that read images."),
    ("--loggers", "A,B", "Where metrics go beside the run's files: tensorboard, wandb, mlflow."),
    ("--output", "DIR", "Folder of the run (default: runs/<algo>-<dataset>-s<seed>)."),
)
"""Flags that take a value: each is the key of the same name in a configuration file."""


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def configuration_options(*, without: Collection[str] = ()) -> Decorator:
    """Give a command every flag of a configuration but some, ``--config`` and ``--set``."""
    decorators = [
        click.option(flag, metavar=metavar, help=text)
        for flag, metavar, text in FLAGS
        if flag not in without
    ]
    decorators += [
        click.option(
            "--pretrained/--no-pretrained", default=None, help="Start from published weights."
        ),
        click.option(
            "--labeled-in-pool/--no-labeled-in-pool",
            default=None,
            help="Keep labeled images in the unlabeled pool as well.",
        ),
        click.option(
            "--drop-leaks/--no-drop-leaks",
            default=None,
            help="Drop training images that are test or validation ones, or have two labels.",
        ),
        click.option(
            "--download/--no-download", default=None, help="Fetch missing files of the data set."
        ),
        click.option(
            "--compile/--no-compile", default=None, help="Compile the model; pays in long runs."
        ),
        click.option("--config", "files", multiple=True, metavar="FILE", help="YAML, repeatable."),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any other key."),
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for give in reversed(decorators):
            command = give(command)
        return command

    return decorate


@click.command(short_help="Train an algorithm and test it.")
@configuration_options()
@click.option("--overwrite", is_flag=True, help="Replace the run that is in --output.")
@click.option(
    "--continue", "proceed", is_flag=True, help="Go on with this very run if it is in --output."
)
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration and stop.")
@click.option("--quiet", is_flag=True, help="Warnings and results only.")
@click.option("--verbose", is_flag=True, help="Every row of metrics.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
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
