"""``ssl-toolkit predict``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ssl_toolkit.commands.options import MODEL, PATH, RUN, toolkit_command
from ssl_toolkit.commands.screen import echo


@toolkit_command
@RUN
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option(
    "--output",
    type=PATH,
    metavar="FILE",
    help="Path to the .csv, .tsv or .jsonl file to write (default: print CSV).",
)
@click.option("--probabilities", is_flag=True, help="Add a column p_<class> for each class.")
@MODEL
def command(
    run: Path,
    images: tuple[str, ...],
    output: Path | None,
    probabilities: bool,
    device: str,
    batch_size: int,
    workers: int | None,
) -> int:
    """Classify IMAGES, files or folders, with the model of RUN.

    RUN is the folder of a run or of an exported model; its data isn't needed. Columns: path,
    class, confidence (the probability of that class), error. An unreadable image has an empty class
    and the reason in the column error, and the exit status is then 1.
    """
    from ssl_toolkit.data.readers.listing import list_images
    from ssl_toolkit.files import check_target
    from ssl_toolkit.inference.run_inputs import inputs_of
    from ssl_toolkit.tabular import TABLES, Row, plain, write_rows
    from ssl_toolkit.text import display_text

    listing = list_images(images)
    check_target(output, TABLES, [*listing.paths, *inputs_of(run)])
    from ssl_toolkit.inference.model import load_model
    from ssl_toolkit.inference.predict import classify

    model = load_model(run, device)
    for note in listing.notes:
        echo(note, err=True)
    bad = 0

    def rows() -> Iterator[Row]:
        nonlocal bad
        for found in classify(model, listing, batch_size, workers):
            values = found.probabilities
            bad += values is None
            confidence = None if values is None else plain(values.max())
            each = [None] * len(model.classes) if values is None else [plain(p) for p in values]
            row = [found.path, found.label or "", confidence, found.error]
            yield [*row, *(each if probabilities else ())]

    columns = ["path", "class", "confidence", "error"]
    if probabilities:
        columns += [f"p_{name}" for name in model.classes]
    write_rows(output, columns, rows())
    if output is not None:
        echo(f"{len(listing.names)} images: {display_text(str(output))}")
    if bad:
        echo(
            f"error: {bad} of {len(listing.names)} images can't be read; the column error of "
            "their rows says why",
            err=True,
        )
    return 1 if bad else 0
