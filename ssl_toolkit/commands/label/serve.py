"""``ssl-toolkit label serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ssl_toolkit.commands.label.options import LABELS_FILE
from ssl_toolkit.commands.options import PATH, ROOT, setting_option, toolkit_command
from ssl_toolkit.commands.screen import echo

if TYPE_CHECKING:
    from ssl_toolkit.labeling.server import LabelingServer


@toolkit_command
@click.argument("data", type=PATH)
@LABELS_FILE
@click.option(
    "--queue",
    type=PATH,
    metavar="FILE",
    help="Path to the .csv file of the images to label, in order (default: every image without a "
    "label).",
)
@click.option(
    "--classes",
    metavar="NAME,NAME",
    default="",
    help="Classes in the order of their keys (default: those of DATA and of the labels file).",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port of 127.0.0.1 (default: a free one).",
)
@setting_option("task")
@ROOT
def command(
    data: Path,
    labels: Path,
    queue: Path | None,
    classes: str,
    port: int | None,
    task: str,
    root: Path | None,
) -> None:
    """Label the images of DATA on a page in the browser.

    Every answer is in the labels file before the next image is shown, so the page and this command
    can be closed at any moment; the next start continues at the first image without an answer. The
    page is served on this machine only, at an address with a secret token. Ctrl-C ends it.
    """
    from ssl_toolkit.labeling.serve import labeling_server

    names = [name.strip() for name in classes.split(",") if name.strip()]
    several = task == "multilabel"
    with labeling_server(
        data, labels, queue=queue, classes=names, root=root, port=port or 0, several=several
    ) as server:
        show_page(server)
        state = server.session.state(len(server.session))
    skipped = f", {state['skipped']} skipped" if state["skipped"] else ""
    echo(f"{state['labeled']} of {state['total']} images labeled{skipped}: {state['file']}")


def show_page(server: LabelingServer) -> None:
    """Print the address of the page, and serve it until the user finishes."""
    from ssl_toolkit.labeling.serve import serve

    try:
        serve(server, lambda url: echo(f"open {url} in a browser on this machine; Ctrl-C ends"))
    except KeyboardInterrupt as error:
        if str(error) == "SIGTERM":
            raise
