"""``ssl-toolkit label round``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ssl_toolkit.commands.label.options import choice_options
from ssl_toolkit.commands.options import (
    PATH,
    QUIET,
    VERBOSE,
    configuration_options,
    toolkit_command,
)
from ssl_toolkit.commands.screen import echo

if TYPE_CHECKING:
    from ssl_toolkit.config.loading import RunConfig
    from ssl_toolkit.labeling.rounds import RoundState

WITHOUT = (
    *("data", "dataset", "labels", "output", "labels_per_class", "num_labels", "split"),
    *("pseudo_labels", "val_fraction", "test_fraction", "stream_buffer"),
)
"""Settings of a run that a round determines, or that contradict it."""


@toolkit_command
@click.argument("data", type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    metavar="DIR",
    help="Path to the folder of the rounds; its labels.csv has the answers so far.",
)
@choice_options(
    budget="Number of images to choose in a round.",
    method="As for label next; margin and badge use the run of the round, or kmeans as long as "
    "there is none",
)
@click.option(
    "--answers",
    type=PATH,
    metavar="FILE",
    help="Path to a file with labels, as for label import.",
)
@click.option("--serve", is_flag=True, help="Label the images on a page in the browser.")
@click.option(
    "--partial",
    is_flag=True,
    help="Start the next round even if images of the queue have no answer.",
)
@configuration_options(without=WITHOUT)
@QUIET
@VERBOSE
def command(
    data: Path,
    output: Path,
    budget: int,
    method: Any,
    answers: Path | None,
    serve: bool,
    partial: bool,
    files: tuple[str, ...],
    sets: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    **flags: Any,
) -> int:
    """Run a round of labeling: take labels, train on all so far, choose the next images of DATA.

    The first call chooses the first images; each further call takes the answers for these, from
    --answers, --serve or the labels.csv of the folder, trains with the settings of a run, and
    chooses the next images. A call that was interrupted at any moment resumes when it is repeated.
    Test images of DATA show the accuracy over the rounds; they choose nothing.
    """
    from ssl_toolkit.config.loading import load_config
    from ssl_toolkit.config.yaml import find_config
    from ssl_toolkit.console import Console
    from ssl_toolkit.errors import ConfigError
    from ssl_toolkit.interrupts import STATUS
    from ssl_toolkit.labeling.rounds import RoundPlan, run_round
    from ssl_toolkit.stages.config import has_stages

    paths = [find_config(name) for name in files]
    if has_stages(paths):
        raise ConfigError("label round trains one run in a round; leave out stages")

    def config(labels: Path, run: Path) -> RunConfig:
        places = {"data": str(data), "labels": str(labels), "output": str(run)}
        return load_config(paths, flags | places, sets)

    plan = RoundPlan(data, output, budget, method, config)
    ask = (lambda queue, labels: _serve(data, queue, labels, flags.get("root"))) if serve else None
    console = Console(quiet=quiet, verbose=verbose)
    state = run_round(plan, console, answers=answers, ask=ask, partial=partial)
    _show(state, output)
    return STATUS.get(state.signal, 0)


def _serve(data: Path, queue: Path, labels: Path, root: str | None) -> None:
    """Serve the page until the user finishes."""
    from ssl_toolkit.commands.label.serve import show_page
    from ssl_toolkit.labeling.serve import labeling_server

    base = None if root is None else Path(root)
    with labeling_server(data, labels, queue=queue, root=base) as server:
        show_page(server)


def _show(state: RoundState, output: Path) -> None:
    """Print the rounds and the next step."""
    from ssl_toolkit.text import display_path

    for number, one in enumerate(state.records, 1):
        score = "not trained" if one.not_trained else "no test images"
        if one.test is not None:
            lower, upper = (100 * bound for bound in one.test.interval)
            score = f"test accuracy {100 * one.test.accuracy:.1f} % ({lower:.1f} to {upper:.1f})"
        echo(f"round {number}: {one.labels:,} labels, {len(one.classes)} classes, {score}")
    if state.signal:
        echo("stopped; repeat the command to resume", err=True)
    elif state.records and not state.records[-1].queued:
        echo("no image is left to label", err=True)
    elif state.waiting:
        queue, labels = display_path(state.queue), display_path(output / "labels.csv")
        echo(
            f"{state.waiting:,} images of {queue} have no answer: label them with --serve, import "
            f"answers with --answers FILE, or add rows to {labels}; then repeat the command",
            err=True,
        )
