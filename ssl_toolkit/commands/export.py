"""``ssl-toolkit export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.options import PATH, RUN, toolkit_command
from ssl_toolkit.commands.screen import echo


@toolkit_command
@RUN
@click.option(
    "--format",
    required=True,
    type=click.Choice(["timm", "torch-export", "onnx"]),
    metavar="FORMAT",
    help="Format: timm (a folder), torch-export (.pt2) or onnx (.onnx).",
)
@click.option(
    "--output",
    metavar="PATH",
    type=PATH,
    help="Path to write (default: timm/, model.pt2 or model.onnx in RUN/export/).",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export.")
def command(run: Path, format: Any, output: Path | None, overwrite: bool) -> None:
    """Export the model of the finished run in the folder RUN.

    The files of torch-export and onnx take images (N, 3, S, S) in [0, 1], any N, and give
    probabilities: they include normalization, softmax and the names of the classes. The
    folder for timm gives logits; its configuration has the normalization and the names.
    """
    from ssl_toolkit.inference.export import export

    path, opened_by = export(run, format, output, overwrite=overwrite)
    echo(f"{path}")
    echo(f"open it with {opened_by}")
