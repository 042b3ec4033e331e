"""``ssl-toolkit inspect``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ssl_toolkit.commands.options import JSON, ROOT, setting_option, toolkit_command
from ssl_toolkit.commands.screen import echo, echo_json, echo_wrapped

if TYPE_CHECKING:
    from ssl_toolkit.reports.dataset import DatasetFacts

MOST = 20
"""Lines of a list that are printed; --json prints all."""


@toolkit_command
@click.argument("data")
@ROOT
@setting_option("image_size", default="32")
@setting_option("channels")
@setting_option("bits")
@setting_option("fit")
@setting_option("workers")
@setting_option("labels_per_class")
@click.option(
    "--imbalance",
    metavar="G",
    help="Also show the counts of each class of a run with the long tails of this --imbalance.",
)
@click.option(
    "--contact-sheet",
    metavar="FILE",
    help="Path to a .png file to write with some images of each class.",
)
@JSON
def command(
    data: str, image_size: Any, contact_sheet: str | None, as_json: bool, **settings: Any
) -> None:
    """Show the images that a run with --data DATA would use.

    Show their layout, classes, counts, sizes, unreadable files, duplicates, and leaks into the test
    split. A run with the same --image-size and --fit reuses the decoded images.
    """
    from ssl_toolkit.console import Console
    from ssl_toolkit.reports.dataset import inspect

    facts = inspect(
        data,
        image_size=image_size or 32,
        contact_sheet=contact_sheet,
        progress=None if as_json else Console().reading,
        **settings,
    )
    if as_json:
        echo_json(facts)
        return
    for line in _lines(facts):
        indent = len(line) - len(line.lstrip())
        echo_wrapped(line.lstrip(), indent + 2, first=indent)
    for line in facts["advice"]:
        echo(line)  # whole, to be pasted
    if contact_sheet is not None:
        echo_wrapped(f"contact sheet: {contact_sheet}", 2)


def _lines(facts: DatasetFacts) -> Iterator[str]:
    yield f"layout: {facts['layout']}"
    yield f"images: {_describe(facts['counts'])}"
    yield from _listed("classes", [f"{k}: {_describe(v)}" for k, v in facts["per_class"].items()])
    balance = facts["balance"]
    largest, smallest = balance["largest"], balance["smallest"]
    ratio = f"{largest / smallest:.1f} times the smallest" if smallest else "the smallest none"
    yield f"balance: the largest class has {largest} images with a label, {ratio}"
    if "widths" in facts:
        yield from _file_lines(facts)
    yield from _listed("byte-identical", [" = ".join(group) for group in facts["duplicates"]])
    leaks = [" = ".join(f"{p['path']} ({p['part']})" for p in group) for group in facts["leaks"]]
    yield from _listed("leaks", leaks)
    yield from facts["notes"]
    for warning in facts["warnings"]:
        yield f"warning: {warning}"


def _file_lines(facts: DatasetFacts) -> Iterator[str]:
    for axis, sizes in (("widths", facts["widths"]), ("heights", facts["heights"])):
        span = f"{sizes['least']} to {sizes['largest']} pixels"
        yield f"{axis}: {span}, median {sizes['median']:g}"
    yield f"modes: {_describe(facts['modes'])}"
    yield f"extensions: {_describe(facts['extensions'])}"
    bad = [f"{one['path']}: {one['reason']}" for one in facts["unreadable"]]
    yield from _listed("unreadable", bad)


def _describe(counts: dict[str, int]) -> str:
    return ", ".join(f"{name or 'none'} {count}" for name, count in counts.items())


def _listed(topic: str, lines: list[str]) -> Iterator[str]:
    yield f"{topic}: {len(lines) or 'none'}"
    for line in lines[:MOST]:
        yield f"  {line}"
    if len(lines) > MOST:
        yield f"  and {len(lines) - MOST:,} more (--json lists all)"
