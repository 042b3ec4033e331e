"""``ssl-toolkit list``."""

from __future__ import annotations

from typing import Any

import click

from ssl_toolkit import registry
from ssl_toolkit.commands.options import JSON, toolkit_command
from ssl_toolkit.commands.screen import clash, echo, echo_json, echo_wrapped


@toolkit_command
@click.argument("group", required=False, metavar="[GROUP]", type=click.Choice(registry.GROUPS))
@click.option("--verbose", is_flag=True, help="Import each plugin; show its state and the reason.")
@JSON
def command(group: str | None, verbose: bool, as_json: bool) -> None:
    """List algorithms, augmenters, backbones, data sets and more, or only one GROUP.

    Read metadata only; --verbose imports every plugin and shows which are broken. Every model of
    timm is also a backbone, but not listed.
    """
    groups = (group,) if group else registry.GROUPS
    rows = [describe(entry, verbose) for name in groups for entry in registry.entries(name)]
    for name in groups:
        for clashing, entries in registry.clashes(name).items():
            owners = [entry.distribution for entry in entries]
            echo(f"warning: {name}: {clash(clashing, owners)}", err=True)
    for line in registry.unknown_groups():
        echo(f"warning: {line}", err=True)
    if as_json:
        echo_json(rows)
        return
    for name in groups:
        members = [row for row in rows if row["group"] == name]
        echo(f"{name}:" if members else f"{name}: none")
        width = max((len(row["name"]) for row in members), default=0)
        for row in members:
            notes = [row["state"]] if row["state"] != "unloaded" else []
            notes += [row["reason"]] if row["reason"] else []
            line = f"{row['name']:{width}}  {row['distribution']} {row['version']}".rstrip()
            echo_wrapped("  ".join([line, *notes]), width + 4, first=2)


def describe(entry: registry.Entry, load: bool) -> dict[str, Any]:
    """One entry in plain types: ``group, name, distribution, version, state, reason``.

    ``state`` is ``ok``, ``broken``, ``clash`` (two foreign distributions claim the name),
    ``shadowed`` (a built-in has the name), or ``unloaded`` when it was not imported.
    """
    state, reason = "unloaded", ""
    if load:
        _, reason = registry.attempt(entry)
        state = "broken" if reason else "ok"
    rivals = registry.clashes(entry.group).get(entry.name, [])
    if rivals and not reason and not entry.built_in:
        others = ", ".join(r.distribution for r in rivals if r != entry)
        state = "shadowed" if rivals[0].built_in else "clash"
        reason = f"the name is claimed by {others} too"
    keys = ("group", "name", "distribution", "version")
    return {key: getattr(entry, key) for key in keys} | {"state": state, "reason": reason}
