"""``ssl-toolkit export``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.screen import echo


@click.command(short_help="Export a run's model: timm, torch.export, ONNX.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(["timm", "torch-export", "onnx"]),
    help="Format: a folder for timm, a .pt2 file, or an .onnx file.",
)
@click.option(
    "--output",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Path to write (default: timm/, model.pt2 or model.onnx in RUN/export/).",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(run: Path, form: str, output: Path | None, overwrite: bool) -> None:
    """Export the model of the finished run in the folder RUN.

    The files of torch-export and onnx take images (N, 3, S, S) in [0, 1], any N, and give
    probabilities: normalization and softmax are inside, and so are the names of the classes. The
    folder for timm gives logits; its configuration has the normalization and the names.
    """
    from ssl_toolkit.inference.export import export

    path, opened_by = export(run, form, output, overwrite=overwrite)  # type: ignore[arg-type]
    echo(f"{path}")
    echo(f"open it with {opened_by}")
