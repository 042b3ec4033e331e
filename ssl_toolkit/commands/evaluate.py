"""``ssl-toolkit evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.options import (
    JSON,
    MODEL,
    PATH,
    PRIOR,
    ROOT,
    setting_option,
    toolkit_command,
)
from ssl_toolkit.commands.screen import echo, echo_json


@toolkit_command
@MODEL
@click.option(
    "--data",
    type=PATH,
    metavar="PATH",
    help="Path to other images with labels of the same classes: a folder or manifest.",
)
@ROOT
@setting_option("on_bad_image", help="how to handle unreadable images of --data")
@click.option(
    "--confusion",
    type=PATH,
    metavar="FILE.png",
    help="Path to a .png file to draw the confusion matrix in.",
)
@PRIOR
@JSON
@setting_option("device", default="that of the run")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of images per batch (default: that of the run).",
)
def command(
    model: Path,
    data: Path | None,
    root: Path | None,
    confusion: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Score MODEL, the folder of a run, on its own validation and test images, or on --data.

    With --data, score its test images, or all labeled ones if it has none; MODEL can then also be
    the folder of an exported model. The interval of the accuracy is a bootstrap over the images
    (95%, 10,000 resamples, seed 0). The JSON includes the confusion matrix: a row for each true
    class, a column for each predicted class.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.inference.evaluate import evaluate
    from ssl_toolkit.runs.progress import multilabel_rows, score_rows

    if data is None and root is not None:
        raise click.UsageError("--root belongs to the manifest of --data; name that too")
    progress = None if as_json else Console().reading
    result = evaluate(
        model,
        data,
        root=root,
        confusion=confusion,
        progress=progress,
        **settings,
    )
    if result.multilabel:
        several = {part: s.model_dump() if s else None for part, s in result.multilabel.items()}
        if as_json:
            echo_json(several)
            return
        for name, value in multilabel_rows(several, all_in="--json"):
            echo(f"{name}: {value}")
        return
    tree = {part: s.model_dump() if s else None for part, s in result.scores.items()}
    if as_json:
        matrices = {part: {"confusion": m.tolist()} for part, m in result.confusion.items()}
        echo_json({part: scores and scores | matrices[part] for part, scores in tree.items()})
        return
    for part, lines in result.estimates.items():
        for line in lines:
            echo(f"{part}: {line}", err=True)
    for name, value in score_rows(tree, all_in="--json"):
        echo(f"{name}: {value}")
