"""Options of the commands that use a trained model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def model_options(
    *, device: str | None, batch_size: int | None, workers: bool
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a trained model.

    Args:
        device: the default.
        batch_size: the default; None lets the run decide.
        workers: True to add ``--workers``.
    """
    default = "of the run" if batch_size is None else batch_size
    options = [
        click.option(
            "--device",
            default=device,
            metavar="NAME",
            help=f"Device: auto, cpu, cuda, cuda:N or mps (default: {device or 'of the run'}).",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            default=batch_size,
            metavar="N",
            help=f"Number of images per batch (default: {default}).",
        ),
    ]
    if workers:
        options.append(
            click.option(
                "--workers",
                type=click.IntRange(0, 256),
                metavar="N",
                help="Number of threads that read images (default: one per core, at most 8).",
            )
        )
    options.append(
        click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
