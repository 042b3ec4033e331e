"""``ssl-toolkit predict``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.options import INFERENCE, MODEL, PATH, PRIOR, REJECT, toolkit_command
from ssl_toolkit.commands.screen import echo


@toolkit_command
@MODEL
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option(
    "--output",
    type=PATH,
    metavar="FILE",
    help="Path to the .csv, .tsv or .jsonl file to write (default: print CSV).",
)
@click.option("--probabilities", is_flag=True, help="Add a column p_<class> for each class.")
@PRIOR
@REJECT
@INFERENCE
def command(
    model: Path,
    images: tuple[str, ...],
    output: Path | None,
    probabilities: bool,
    device: str,
    batch_size: int,
    workers: int | None,
    prior: str | None,
    reject: float | None,
    reject_above: float | None,
) -> int:
    """Classify IMAGES, files or folders, with a trained MODEL.

    MODEL is the folder of a run or of an exported model; its data isn't needed. Columns: path,
    class, confidence (the probability of that class), error. An unreadable image has an empty class
    and the reason in the column error, and the exit status is then 1. With --reject or
    --reject-above, the columns stranger (yes or no) and stranger_score precede error, and rejected
    images have no class.
    """
    from ssl_toolkit.inference.predict import predict_table
    from ssl_toolkit.text import display_text

    count, unreadable, notes = predict_table(
        model,
        images,
        output,
        probabilities=probabilities,
        device=device,
        batch_size=batch_size,
        workers=workers,
        prior=prior,
        reject=reject,
        reject_above=reject_above,
    )
    for note in notes:
        echo(note, err=True)
    if output is not None:
        echo(f"{count} images: {display_text(str(output))}")
    if unreadable:
        echo(
            f"error: {unreadable} of {count} images can't be read; the column error of their rows "
            "has the reason",
            err=True,
        )
    return 1 if unreadable else 0
