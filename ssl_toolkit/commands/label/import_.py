"""``ssl-toolkit label import``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.label.options import LABELS_FILE
from ssl_toolkit.commands.options import PATH, ROOT, toolkit_command
from ssl_toolkit.commands.screen import echo


@toolkit_command
@click.argument("data", type=PATH)
@click.argument("file", type=PATH)
@LABELS_FILE
@click.option(
    "--classes",
    metavar="NAME,NAME",
    default="",
    help="Classes that are allowed (default: those of DATA, or all if it has none).",
)
@click.option("--replace", is_flag=True, help="Replace labels that differ.")
@ROOT
def command(
    data: Path, file: Path, labels: Path, classes: str, replace: bool, root: Path | None
) -> None:
    """Add the answers in FILE to a labels file; FILE names images of DATA.

    FILE is an export of Label Studio (JSON), CVAT's form "ImageNet 1.0" (a .zip file or a folder of
    class folders), FiftyOne's labels.json, or a table with the columns path and label. If an answer
    is invalid, nothing is added.
    """
    from ssl_toolkit.labeling.exchange.transfer import import_labels
    from ssl_toolkit.text import display_path

    names = [name.strip() for name in classes.split(",") if name.strip()]
    result = import_labels(data, file, labels, root=root, classes=names, replace=replace)
    echo(
        f"{display_path(labels)}: {result.new:,} rows added or changed; {display_path(file)} has "
        f"{result.labels:,} labels, {result.skipped:,} images were skipped",
        err=True,
    )
