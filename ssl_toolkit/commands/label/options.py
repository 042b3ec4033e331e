"""Options that the verbs of ``label`` share."""

from __future__ import annotations

import click

from ssl_toolkit.commands.options import PATH, Decorator, options

METHODS = ("kmeans", "typicality", "margin", "badge", "random")

LABELS_FILE = click.option(
    "--labels",
    type=PATH,
    required=True,
    metavar="FILE",
    help="Path to the .csv file of path and label, created if it doesn't exist.",
)
"""The labels file that a verb adds to."""


def choice_options(budget: str, method: str) -> Decorator:
    """Return the options of how many images to label next, and by which method.

    Args:
        budget: Help of ``--budget``.
        method: Help of ``--method``.
    """
    return options(
        click.option(
            "--budget", type=click.IntRange(min=1), required=True, metavar="N", help=budget
        ),
        click.option(
            "--method",
            type=click.Choice(METHODS),
            default="kmeans",
            help=f"{method} (default: kmeans).",
        ),
    )
