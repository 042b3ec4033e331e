"""``ssl-toolkit evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.options import JSON, PATH, ROOT, RUN, setting_option, toolkit_command
from ssl_toolkit.commands.screen import echo, echo_json


@toolkit_command
@RUN
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
@JSON
@setting_option("device", default="that of the run")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of images per batch (default: that of the run).",
)
def command(
    run: Path,
    data: Path | None,
    root: Path | None,
    on_bad_image: str,
    confusion: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Score the model in the folder RUN on its own validation and test images, or on --data.

    With --data, score its test part, or all labeled images if it has none. The interval of the
    accuracy is a bootstrap over the images (95%, 10,000 resamples, seed 0). The JSON includes the
    confusion matrix: a row for each true class, a column for each predicted class.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.errors import DataError
    from ssl_toolkit.files import check_target
    from ssl_toolkit.inference.evaluate import evaluate
    from ssl_toolkit.inference.run_inputs import check_beside, data_of
    from ssl_toolkit.reports.confusion import draw_confusion
    from ssl_toolkit.runs.progress import score_rows
    from ssl_toolkit.tabular import write_image
    from ssl_toolkit.text import display_path

    check_target(confusion, (".png",))
    if data is None and root is not None:
        raise click.UsageError("--root belongs to the manifest of --data; name that too")
    for place, base in data_of(run) if data is None else [(data, root)]:
        check_beside(confusion, place, base)
    progress = None if as_json else Console().reading
    skip_bad = on_bad_image == "skip"
    result = evaluate(run, data, root=root, skip_bad=skip_bad, progress=progress, **settings)
    if confusion is not None:
        # The last part is the test, or what stands for it.
        parts = [part for part, scores in result.scores.items() if scores is not None]
        if not parts:
            raise DataError(f"{display_path(run)}: nothing to score; name images with --data")
        write_image(confusion, draw_confusion(result.confusion[parts[-1]], result.classes))
    tree = {part: s.model_dump() if s else None for part, s in result.scores.items()}
    if as_json:
        matrices = {part: {"confusion": m.tolist()} for part, m in result.confusion.items()}
        echo_json({part: scores and scores | matrices[part] for part, scores in tree.items()})
        return
    for name, value in score_rows(tree, all_in="--json"):
        echo(f"{name}: {value}")
