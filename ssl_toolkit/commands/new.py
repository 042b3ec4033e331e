"""``ssl-toolkit new``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.screen import echo
from ssl_toolkit.scaffold import KINDS, LICENSES, create


@click.command(short_help="Write a project for a plugin of your own.")
@click.argument("kind", type=click.Choice([*KINDS]))
@click.argument("name")
@click.option(
    "--path",
    "parent",
    type=click.Path(path_type=Path),
    default=".",
    metavar="DIR",
    help="Where the project's folder, called NAME, is made (default: here).",
)
@click.option(
    "--license",
    type=click.Choice([*LICENSES, "none"]),
    default="MIT",
    show_default=True,
    help="Under which it is published.",
)
@click.option("--author", metavar="NAME", help="Who holds the copyright.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
def command(kind: str, name: str, parent: Path, license: str, author: str | None) -> None:
    """Write a complete small project for a plugin: KIND and NAME, such as: algorithm my_method.

    One commented source file that works as it stands, tests by the contract kit, packaging with
    the entry point, README, license, and a file for continuous integration.
    """
    chosen = None if license == "none" else license
    folder = create(kind, name, parent, license=chosen, author=author)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        echo(path)
    echo(f"next: pip install -e {folder}; ssl-toolkit check {name}")
