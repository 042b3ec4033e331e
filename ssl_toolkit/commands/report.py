"""``ssl-toolkit report``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Make the tables and the page of runs or of a comparison.")
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    metavar="RUN_OR_COMPARISON...",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PLACE",
    help="FILE.html for the page alone, or a folder for the page and the tables.",
)
@click.option("--baseline", metavar="ROW", help="Row that the others are compared with.")
@click.option(
    "--allow-different",
    multiple=True,
    metavar="KEY",
    help="A shared setting in which rows may differ; it is marked in every table. Repeatable.",
)
@click.option("--name", metavar="TEXT", help="Title.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
def command(
    folders: tuple[Path, ...],
    output: Path | None,
    baseline: str | None,
    allow_different: tuple[str, ...],
    name: str | None,
) -> None:
    """Make tables and a page of one comparison, or of runs that belong to none.

    The files of a comparison are written into its folder, the page of a single run into that of
    the run, those of several runs into the folder report. Runs that differ in their seed alone
    share a row. Nothing is trained, and the data isn't needed.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.reports.report import report
    from ssl_toolkit.reports.tables import show_table
    from ssl_toolkit.text import display_path

    allow = [key.strip() for text in allow_different for key in text.split(",") if key.strip()]
    comparison, files = report(folders, output=output, baseline=baseline, allow=allow, name=name)
    console = Console()
    show_table(comparison, console)
    console.say(f"written: {', '.join(map(display_path, files))}", important=True)
