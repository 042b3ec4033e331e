"""``ssl-toolkit embed``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ssl_toolkit.commands.model_options import model_options


@click.command(short_help="Compute the features of images with a pre-trained backbone.")
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--backbone", required=True, metavar="NAME", help="Registered backbone or any timm model."
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Path to the weights of the backbone (default: the published ones).",
)
@click.option(
    "--image-size",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Side length of the images in pixels (default: the backbone's).",
)
@click.option(
    "--fit",
    type=click.Choice(["crop", "pad"]),
    default="crop",
    help="How to make images square: crop the center, or pad with white (default: crop).",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Base directory of the paths in a manifest.",
)
@click.option(
    "--on-bad-image",
    type=click.Choice(["error", "skip"]),
    default="error",
    help="How to handle unreadable images (default: error).",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Path of the .npz or .parquet file to write.",
)
@model_options(device="auto", batch_size=64, workers=True)
def command(
    data: Path,
    backbone: str,
    weights: Path | None,
    image_size: int | None,
    fit: Literal["crop", "pad"],
    root: Path | None,
    on_bad_image: str,
    output: Path,
    device: str,
    batch_size: int,
    workers: int | None,
) -> None:
    """Compute the features of all images in DATA: what --data takes, or a folder of images.

    The features are those of the penultimate layer, in eval mode and without augmentation. They are
    cached by the content of the images, the backbone, its weights and the image size.
    """
    import os

    from ssl_toolkit.commands.screen import echo
    from ssl_toolkit.console import Console
    from ssl_toolkit.files import check_target
    from ssl_toolkit.inference.embed import embed

    check_target(output, (".npz", ".parquet"))
    found = embed(
        data,
        backbone=backbone,
        weights=weights,
        image_size=image_size,
        fit=fit,
        root=root,
        skip_bad=on_bad_image == "skip",
        device=device,
        batch_size=batch_size,
        workers=min(os.cpu_count() or 1, 8) if workers is None else workers,
        progress=Console().reading,
    )
    found.save(output)
    count, size = found.features.shape
    echo(f"{output}: {count} images, {size} features each", err=True)
