"""``ssl-toolkit label``: one module per verb."""

from __future__ import annotations

import click

from ssl_toolkit.commands import LazyGroup

VERBS = {
    "serve": "Label images on a page in the browser.",
}


@click.command(cls=LazyGroup, package="ssl_toolkit.commands.label", helps=VERBS)
def command() -> None:
    """Label images by hand; the labels are a CSV file that --labels of a run reads."""
