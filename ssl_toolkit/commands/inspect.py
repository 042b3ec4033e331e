"""``ssl-toolkit inspect``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ssl_toolkit.commands.screen import echo, echo_json
from ssl_toolkit.errors import ConfigError

MOST = 20
"""Lines of a list that are printed; --json prints all."""


@click.command(short_help="Look at images before training.")
@click.argument("data")
@click.option("--root", metavar="DIR", help="Where the paths of a list start.")
@click.option("--image-size", metavar="N", help="Side at which they are decoded (default: 32).")
@click.option("--fit", metavar="crop|pad", help="How they become square (default: crop).")
@click.option("--workers", metavar="N", help="Threads that read images.")
@click.option("--contact-sheet", metavar="FILE", help="Write some images of each class: a .png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
def command(
    data: str,
    root: str | None,
    image_size: str | None,
    fit: str | None,
    workers: str | None,
    contact_sheet: str | None,
    as_json: bool,
) -> None:
    """Show what a run with --data DATA would use.

    Layout, classes, counts, sizes, unreadable files, images that are there twice, and leaks into
    the test. What is decoded here is not decoded again by a run of the same --image-size
    and --fit.
    """
    sheet = None if contact_sheet is None else _sheet_path(contact_sheet)
    from ssl_toolkit.config.loading import load_config
    from ssl_toolkit.console import Console
    from ssl_toolkit.data.load import load_table
    from ssl_toolkit.files import write_atomically
    from ssl_toolkit.inference.run_inputs import check_beside
    from ssl_toolkit.reports.dataset import contact_sheet as draw
    from ssl_toolkit.reports.dataset import inspect

    check_beside(sheet, Path(data), None if root is None else Path(root))
    flags = {"data": data, "root": root, "workers": workers, "image_size": image_size or "32"}
    flags["fit"] = fit
    settings = load_config([], {**flags, "on_bad_image": "skip"}).settings
    table = load_table(settings, None if as_json else Console().reading)
    facts = inspect(Path(data), table, settings.image_size or 32)
    if sheet is not None:
        image = draw(table)
        try:
            write_atomically(sheet, lambda file: image.save(file, "PNG"))
        except OSError as error:
            raise ConfigError(f"--contact-sheet {sheet}: {error.strerror or error}") from None
    if as_json:
        echo_json(facts)
        return
    for line in _lines(facts):
        echo(line)
    if sheet is not None:
        echo(f"contact sheet: {sheet}")


def _sheet_path(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--contact-sheet {text}: the sheet is a PNG; give a name that ends so")
    return path


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    yield f"layout: {facts['layout']}"
    yield f"images: {_told(facts['counts'])}"
    yield from _listed("classes", [f"{k}: {_told(v)}" for k, v in facts["per_class"].items()])
    balance = facts["balance"]
    ratio = f"{balance['largest'] / balance['smallest']:.1f} times the smallest"
    yield f"balance: the largest class has {balance['largest']} images, {ratio}"
    if "widths" in facts:
        yield from _file_lines(facts)
    yield from _listed("byte-identical", [" = ".join(group) for group in facts["duplicates"]])
    leaks = [" = ".join(f"{p['path']} ({p['part']})" for p in group) for group in facts["leaks"]]
    yield from _listed("leaks", leaks)
    yield from facts["notes"]
    for warning in facts["warnings"]:
        yield f"warning: {warning}"


def _file_lines(facts: dict[str, Any]) -> Iterator[str]:
    for axis in ("widths", "heights"):
        least, median, largest = facts[axis].values()
        yield f"{axis}: {least} to {largest} pixels, median {median:g}"
    yield f"modes: {_told(facts['modes'])}"
    yield f"extensions: {_told(facts['extensions'])}"
    bad = [f"{one['path']}: {one['reason']}" for one in facts["unreadable"]]
    yield from _listed("unreadable", bad)


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{name or 'none'} {count}" for name, count in counts.items())


def _listed(topic: str, lines: list[str]) -> Iterator[str]:
    yield f"{topic}: {len(lines) or 'none'}"
    for line in lines[:MOST]:
        yield f"  {line}"
    if len(lines) > MOST:
        yield f"  and {len(lines) - MOST:,} more (--json lists all)"
