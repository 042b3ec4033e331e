"""``ssl-toolkit embed``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.options import INFERENCE, PATH, ROOT, setting_option, toolkit_command


@toolkit_command
@click.argument("data", type=PATH)
@setting_option("backbone", required=True)
@setting_option("weights", help="path to the weights of the backbone", default="the published ones")
@setting_option("image_size", default="the backbone's")
@setting_option("channels")
@setting_option("bits")
@setting_option("fit")
@ROOT
@setting_option("on_bad_image")
@click.option(
    "--output",
    type=PATH,
    required=True,
    metavar="FILE",
    help="Path to the .npz or .parquet file to write.",
)
@INFERENCE
def command(data: Path, output: Path, **settings: Any) -> None:
    """Compute the features of all images in DATA: data as for --data, or a folder of images.

    The features are those of the penultimate layer, in eval mode and without augmentation. They are
    cached by the content of the images, the backbone, its weights and the image size.
    """
    from ssl_toolkit.commands.screen import echo
    from ssl_toolkit.console import Console
    from ssl_toolkit.files import check_target
    from ssl_toolkit.inference.embed import embed

    check_target(output, (".npz", ".parquet"))
    embeddings = embed(data, progress=Console().reading, **settings)
    embeddings.save(output)
    count, size = embeddings.features.shape
    echo(f"{output}: {count} images, {size} features each", err=True)
