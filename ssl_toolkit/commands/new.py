"""``ssl-toolkit new``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.screen import echo
from ssl_toolkit.scaffold import KINDS, LICENSES, create


@click.command(short_help="Create a project for a plugin.")
@click.argument("kind", type=click.Choice([*KINDS]))
@click.argument("name")
@click.option(
    "--path",
    "parent",
    type=click.Path(path_type=Path),
    default=".",
    metavar="DIR",
    help="Parent directory of the project's folder NAME (default: .).",
)
@click.option(
    "--license",
    type=click.Choice([*LICENSES, "none"]),
    default="MIT",
    show_default=True,
    help="License of the project.",
)
@click.option("--author", metavar="NAME", help="Copyright holder.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(kind: str, name: str, parent: Path, license: str, author: str | None) -> None:
    """Create a small, complete project for a plugin of KIND called NAME.

    For example: ssl-toolkit new algorithm my_method. The project has one commented source file
    that works unchanged, tests with the contract kit, packaging with the entry point, a README, a
    license, and a file for continuous integration.
    """
    chosen = None if license == "none" else license
    folder = create(kind, name, parent, license=chosen, author=author)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        echo(path)
    echo(f"next: pip install -e {folder}; ssl-toolkit check {name}")
