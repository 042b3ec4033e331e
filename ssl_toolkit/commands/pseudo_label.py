"""``ssl-toolkit pseudo-label``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.options import MODEL, PATH, RUN, toolkit_command
from ssl_toolkit.commands.screen import echo


@toolkit_command
@RUN
@click.argument("pool", type=click.Path())
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.95,
    metavar="P",
    help="Minimum probability of a label (default: 0.95).",
)
@click.option(
    "--output",
    type=PATH,
    metavar="FILE",
    help="Path to the manifest to write: .csv, .tsv or .jsonl (default: print CSV).",
)
@click.option(
    "--uncertain",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the N most uncertain images, to label next: those with the smallest margin "
    "between the two most probable classes. Write the manifest only with --output.",
)
@MODEL
def command(
    run: Path,
    pool: str,
    threshold: float,
    output: Path | None,
    uncertain: int | None,
    device: str,
    batch_size: int,
    workers: int | None,
) -> int:
    """Label the images of the folder POOL for which the model of RUN is confident.

    Write a manifest with the columns path, label, split and confidence, which --data accepts.
    Images below the threshold have no label. Paths are relative if the pool is in the folder of the
    manifest, and absolute otherwise; training then needs --root. Unreadable images are reported and
    left out, and the exit status is then 1.
    """
    from ssl_toolkit.data.readers.listing import list_images
    from ssl_toolkit.files import check_target
    from ssl_toolkit.inference.run_inputs import inputs_of
    from ssl_toolkit.tabular import write_rows
    from ssl_toolkit.text import display_text

    listing = list_images([pool])
    check_target(output, (".csv", ".tsv", ".jsonl"), [*listing.paths, *inputs_of(run)])
    from ssl_toolkit.inference.model import load_model
    from ssl_toolkit.inference.pseudo_label import (
        MANIFEST,
        UNCERTAIN,
        check_names,
        manifest_rows,
        predict_pool,
        root_of,
        uncertain_rows,
    )

    model = load_model(run, device)
    if output is not None or uncertain is None:
        check_names(model.classes, listing)
    found = predict_pool(model, listing, batch_size, workers=workers)
    if uncertain is not None:
        write_rows(None, UNCERTAIN, uncertain_rows(found, model.classes, uncertain))
    if output is not None or uncertain is None:
        folder = None if output is None else output.absolute().parent
        rows = manifest_rows(found, model.classes, threshold, folder)
        write_rows(output, MANIFEST, rows)
        labels = {row[1] for row in rows if row[1]}
        sure = sum(1 for row in rows if row[1])
        message = f"{sure} of {len(rows)} images labeled, {len(labels)} classes"
        echo(message if output is None else f"{display_text(str(output))}: {message}", err=True)
        if len(labels) < 2:
            echo("warning: training needs two classes; lower --threshold", err=True)
        if output is not None and (root := root_of([str(row[0]) for row in rows])):
            echo(f"train on it with --root {root}", err=True)
    for line in found.unreadable:
        echo(f"error: can't read image {line}", err=True)
    return 1 if found.unreadable else 0
