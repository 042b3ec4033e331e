"""``ssl-toolkit label export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.options import PATH, ROOT, toolkit_command
from ssl_toolkit.commands.screen import echo

FORMATS = ("label-studio", "cvat", "fiftyone", "csv")


@toolkit_command
@click.argument("data", type=PATH)
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    required=True,
    help="label-studio: JSON tasks with annotations and predictions; cvat: a .zip of class "
    "folders with the images; fiftyone: labels.json; csv: path and label.",
)
@click.option("--labels", type=PATH, metavar="FILE", help="Path to a .csv of path and label.")
@click.option(
    "--queue",
    type=PATH,
    metavar="FILE",
    help="Path to a .csv of images to label, as label next writes it; its guesses become "
    "predictions.",
)
@click.option(
    "--prefix",
    metavar="URL",
    default="/data/local-files/?d=",
    help="Start of the addresses of images in Label Studio (default: /data/local-files/?d=).",
)
@ROOT
@click.option(
    "-o", "--output", type=PATH, required=True, metavar="FILE", help="Path to the file to write."
)
def command(data: Path, format: Any, output: Path, **options: Any) -> None:
    """Write the labels of images of DATA, and images to label, for another tool.

    CVAT and FiftyOne get images with a label only: their forms have no place for others.
    """
    from ssl_toolkit.labeling.exchange.transfer import export_labels
    from ssl_toolkit.text import display_path

    result = export_labels(data, output, format, **options)
    left_out = f"; {result.left_out:,} without a label left out" if result.left_out else ""
    echo(f"{display_path(output)}: {result.images:,} images{left_out}", err=True)
