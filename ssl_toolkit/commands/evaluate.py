"""``ssl-toolkit evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(short_help="Score a finished run again.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
def command(run: Path, as_json: bool) -> None:
    """Score the weights that the finished run in the folder RUN reports, on its own data.

    Writes nothing.
    """
    from ssl_toolkit.results.console import score_rows
    from ssl_toolkit.results.run import evaluate, load_finished

    results = evaluate(load_finished(run))
    if as_json:
        click.echo(json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False))
        return
    for name, value in score_rows(results):
        click.echo(f"{name}: {value}")
