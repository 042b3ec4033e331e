"""Options of the commands that use a trained model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def model_options(
    *, device: str | None, batch_size: int | None, workers: bool
) -> Callable[[Command], Command]:
    """A decorator that adds ``--device``, ``--batch-size``, ``--debug`` and perhaps ``--workers``.

    Args:
        device: the default.
        batch_size: the default; None lets the run decide.
        workers: whether images are read by threads of which the user may say how many.
    """
    told = "Speed and memory." if batch_size is None else f"Default: {batch_size}."
    options = [
        click.option(
            "--device", default=device, metavar="NAME", help="auto, cpu, cuda, cuda:N or mps."
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            default=batch_size,
            metavar="N",
            help=told,
        ),
    ]
    if workers:
        options.append(
            click.option(
                "--workers",
                type=click.IntRange(0, 256),
                metavar="N",
                help="Threads that read images (default: one a processor, 8 at most).",
            )
        )
    options.append(
        click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
