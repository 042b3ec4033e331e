"""``ssl-toolkit pseudo-label``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.options import INFERENCE, MODEL, PATH, REJECT, toolkit_command
from ssl_toolkit.commands.screen import echo


@toolkit_command
@MODEL
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
@REJECT
@INFERENCE
def command(
    model: Path,
    pool: str,
    threshold: float,
    output: Path | None,
    uncertain: int | None,
    device: str,
    batch_size: int,
    workers: int | None,
    reject: float | None,
    reject_above: float | None,
) -> int:
    """Label the images of the folder POOL on which MODEL is confident.

    MODEL is the folder of a run or of an exported model. Write a manifest with the columns path,
    label, split and confidence, which --data accepts. Images below the threshold and rejected ones
    have no label. Paths are relative if the pool is in the folder of the manifest, and absolute
    otherwise; training then needs --root. Unreadable images are reported and left out, and the exit
    status is then 1.
    """
    from ssl_toolkit.inference.pseudo_label import MANIFEST, UNCERTAIN, pseudo_label
    from ssl_toolkit.tabular import write_rows
    from ssl_toolkit.text import display_text

    labeling = pseudo_label(
        model,
        pool,
        threshold=threshold,
        output=output,
        uncertain=uncertain or 0,
        device=device,
        batch_size=batch_size,
        workers=workers,
        reject=reject,
        reject_above=reject_above,
    )
    for note in labeling.notes:
        echo(note, err=True)
    if uncertain is not None:
        write_rows(None, UNCERTAIN, labeling.uncertain)
    if output is not None or uncertain is None:
        if output is None:
            write_rows(None, MANIFEST, labeling.rows())
        labels = [label for label in labeling.labels if label is not None]
        count = len(set(labels))
        message = f"{len(labels)} of {len(labeling.paths)} images labeled, {count} classes"
        echo(message if output is None else f"{display_text(str(output))}: {message}", err=True)
        if count < 2:
            highest = max(labeling.confidences, default=0.0)
            echo(
                f"warning: training needs two classes; lower --threshold {threshold:g}: the "
                f"highest confidence is {highest:.4f}",
                err=True,
            )
        if output is not None and labeling.root:
            echo(f"train on it with --root {labeling.root}", err=True)
    for line in labeling.unreadable:
        echo(f"error: can't read image {line}", err=True)
    return 1 if labeling.unreadable else 0
