"""``ssl-toolkit label next``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.label.options import choice_options
from ssl_toolkit.commands.options import INFERENCE, PATH, ROOT, setting_option, toolkit_command


@toolkit_command
@click.argument("source", metavar="DATA|RUN", type=PATH)
@choice_options(
    budget="Number of images to choose.",
    method="kmeans, typicality and random need no label; margin and badge use the predictions of "
    "RUN, or of a linear probe on the labels",
)
@click.option(
    "--labels",
    type=PATH,
    metavar="FILE",
    help="Path to a .csv with the columns path and label of the images labeled so far; an empty "
    "label marks a skipped image (default: the labels of the data, or of the run).",
)
@click.option("--data", type=PATH, help="Path to the images of RUN, if they were moved.")
@setting_option(
    "backbone", help="pre-trained backbone of the features", default="tf_efficientnet_lite0"
)
@click.option(
    "--pretrained",
    is_flag=True,
    expose_value=False,
    help="Use the published weights of the backbone, as it is done without --weights.",
)
@setting_option("weights", help="path to the weights of the backbone", default="the published ones")
@setting_option("image_size", default="the backbone's")
@setting_option("fit")
@ROOT
@setting_option("on_bad_image")
@setting_option("seed")
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Path to the .csv file to write (default: print CSV).",
)
@INFERENCE
def command(source: Path, backbone: str | None, output: Path | None, **settings: Any) -> None:
    """Choose the images of DATA or of the data of RUN to label next, the most useful first.

    DATA is a folder of images without labels, or data as for --data. Write a table with the columns
    path, score, guess, confidence and method. Images with a label, test and validation images, and
    duplicates are never chosen.
    """
    from ssl_toolkit.commands.screen import echo
    from ssl_toolkit.console import Console
    from ssl_toolkit.files import check_target
    from ssl_toolkit.labeling.next import BACKBONE, choose_next
    from ssl_toolkit.labeling.queue import write_queue
    from ssl_toolkit.text import display_path

    labels = [settings["labels"]] if settings["labels"] else []
    check_target(output, (".csv",), labels)
    chosen = choose_next(
        source,
        backbone=backbone or BACKBONE,
        progress=Console().reading,
        **settings,
    )
    write_queue(output, chosen.images)
    place = "" if output is None else f"{display_path(output)}: "
    echo(
        f"{place}{len(chosen.images):,} of {chosen.candidates:,} images to label next, by "
        f"{settings['method']}; {chosen.labeled:,} have a label",
        err=True,
    )
