"""``ssl-toolkit report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ssl_toolkit.commands.options import PATH, toolkit_command
from ssl_toolkit.config.options import split_names
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import at_home
from ssl_toolkit.text import display_path

if TYPE_CHECKING:
    from ssl_toolkit.suites.results import Benchmark


@toolkit_command
@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="RUN_OR_COMPARISON...")
@click.option(
    "--output",
    type=PATH,
    metavar="PATH",
    help="Path to write: FILE.html for the page alone, or a folder for page and tables.",
)
@click.option("--baseline", metavar="ROW", help="Row to compare the others with.")
@click.option(
    "--allow-different",
    multiple=True,
    metavar="KEY",
    help="Setting in which rows may differ; every table marks it. Repeatable.",
)
@click.option("--name", metavar="TEXT", help="Title of the report (default: the folder's name).")
@click.option(
    "--level",
    "levels",
    multiple=True,
    type=float,
    metavar="ACCURACY",
    help="Validation accuracy whose seconds to report (default: 90 % and 95 % of that of the upper "
    "bound, or of the best row). Repeatable.",
)
def command(folders: tuple[Path, ...], allow_different: tuple[str, ...], **settings: Any) -> None:
    """Write tables and an HTML page of one comparison, of a benchmark suite, or of separate runs.

    The output is written to the folder of the comparison or suite, to the run's folder for a single
    run, and to the folder report for several runs. Runs that differ only in their seed share a row.
    Nothing is trained, and the data is not needed.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.reports.report import report
    from ssl_toolkit.reports.tables import show_table
    from ssl_toolkit.suites.report import report_suite

    suite = report_suite(at_home(folders[0])) if len(folders) == 1 else None
    if suite is not None:
        _report_suite(suite, at_home(folders[0]), given=any((*settings.values(), *allow_different)))
        return
    allow = split_names(",".join(allow_different))
    comparison, files = report(folders, allow=allow, **settings)
    console = Console()
    show_table(comparison, console)
    console.say(f"written: {', '.join(map(display_path, files))}", important=True)


def _report_suite(results: Benchmark, folder: Path, *, given: bool) -> None:
    from ssl_toolkit.console import Console
    from ssl_toolkit.suites.run import write_and_show

    if given:
        raise ConfigError(
            f"{display_path(folder)}: a suite is reported without options; report one of its "
            f"comparisons with them, such as {display_path(folder / results.members[0].folder)}"
        )
    write_and_show(results, folder, Console())
