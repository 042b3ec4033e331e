"""``ssl-toolkit export``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.screen import echo


@click.command(short_help="Write a run's model for use elsewhere.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(["timm", "torch-export", "onnx"]),
    help="timm: a folder; torch-export: a .pt2 file; onnx: an .onnx file.",
)
@click.option(
    "--output",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Where (default: timm/, model.pt2 or model.onnx in RUN/export/).",
)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier export wrote there.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
def command(run: Path, form: str, output: Path | None, overwrite: bool) -> None:
    """Write the model of the finished run in the folder RUN in a form that others open.

    The files of torch-export and onnx take images (N, 3, S, S) in [0, 1], any N, and give
    probabilities: normalization and softmax are inside, and so are the names of the classes. The
    folder for timm gives logits; its configuration has the normalization and the names.
    """
    from ssl_toolkit.inference.export import export

    path, opened_by = export(run, form, output, overwrite=overwrite)  # type: ignore[arg-type]
    echo(f"{path}")
    echo(f"open it with {opened_by}")
