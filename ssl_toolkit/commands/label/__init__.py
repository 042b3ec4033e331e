"""``ssl-toolkit label``: one module per verb."""

from __future__ import annotations

import click

from ssl_toolkit.commands import LazyGroup

VERBS = {
    "next": "Choose the images to label next.",
    "import": "Read the answers of Label Studio, CVAT or FiftyOne.",
    "export": "Write labels and tasks for Label Studio, CVAT or FiftyOne.",
    "round": "Train on the labels so far, and choose the next images.",
    "serve": "Label images on a page in the browser.",
}


@click.command(cls=LazyGroup, package="ssl_toolkit.commands.label", helps=VERBS)
def command() -> None:
    """Choose the images to label, and label them.

    The labels are a CSV file that --labels of a run reads.
    """
