"""``ssl-toolkit new``."""

from __future__ import annotations

from pathlib import Path

import click

from ssl_toolkit.commands.options import PATH, toolkit_command
from ssl_toolkit.commands.screen import echo
from ssl_toolkit.scaffold import KINDS, LICENSES, create


@toolkit_command
@click.argument("kind", metavar="KIND", type=click.Choice([*KINDS]))
@click.argument("name")
@click.option(
    "--path",
    "parent",
    type=PATH,
    default=".",
    metavar="DIR",
    help="Parent directory of the project's folder NAME (default: .).",
)
@click.option(
    "--license",
    type=click.Choice([*LICENSES, "none"]),
    default="MIT",
    metavar="NAME",
    help=f"License: {', '.join(LICENSES)} or none (default: MIT).",
)
@click.option("--author", metavar="NAME", help="Copyright holder (default: the authors of NAME).")
def command(kind: str, name: str, parent: Path, license: str, author: str | None) -> None:
    """Create a small, complete project for the plugin NAME.

    KIND is addon, algorithm, augmenter, backbone, dataset, launcher or logger, as in `ssl-toolkit
    new algorithm my_method`. The project has one commented source file that works unchanged, tests
    with the contract kit, packaging with the entry point, a README, a license, and a workflow for
    continuous integration.
    """
    chosen = None if license == "none" else license
    folder = create(kind, name, parent, license=chosen, author=author)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        echo(path)
    echo(f"next: pip install -e {folder}; ssl-toolkit check {name}")
