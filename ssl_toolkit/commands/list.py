"""``ssl-toolkit list``."""

from __future__ import annotations

from typing import Any

import click

from ssl_toolkit import registry
from ssl_toolkit.commands.options import JSON, toolkit_command
from ssl_toolkit.commands.screen import clash, echo, echo_json, echo_wrapped


@toolkit_command
@click.argument("group", required=False, metavar="[GROUP]", type=click.Choice(registry.GROUPS))
@click.option("--verbose", is_flag=True, help="Import each plugin; show its state and its facts.")
@JSON
def command(group: str | None, verbose: bool, as_json: bool) -> None:
    """List algorithms, add-ons, augmenters, backbones, data sets and more, or only one GROUP.

    Read metadata only; --verbose imports every plugin, shows which are broken, and what each
    algorithm needs and does. Every model of timm is also a backbone, but not listed.
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
            notes += filter(None, (row["reason"], row.get("facts")))
            line = f"{row['name']:{width}}  {row['distribution']} {row['version']}".rstrip()
            echo_wrapped("  ".join([line, *notes]), width + 4, first=2)


def describe(entry: registry.Entry, load: bool) -> dict[str, Any]:
    """One entry in plain types: ``group, name, distribution, version, state, reason``.

    An algorithm that was imported has the keys of `algorithm_facts` too.

    ``state`` is ``ok``, ``broken``, ``clash`` (two foreign distributions claim the name),
    ``shadowed`` (a built-in has the name), or ``unloaded`` when it was not imported.
    """
    state, reason = "unloaded", ""
    facts: dict[str, Any] = {}
    if load:
        plugin, reason = registry.attempt(entry)
        state = "broken" if reason else "ok"
        if plugin is not None and entry.group == "algorithms":
            facts = algorithm_facts(plugin)
        elif plugin is not None and entry.group == "addons":
            facts = {"facts": summary_of(plugin)}
    rivals = registry.clashes(entry.group).get(entry.name, [])
    if rivals and not reason and not entry.built_in:
        others = ", ".join(r.distribution for r in rivals if r != entry)
        state = "shadowed" if rivals[0].built_in else "clash"
        reason = f"the name is claimed by {others} too"
    keys = ("group", "name", "distribution", "version")
    description = {key: getattr(entry, key) for key in keys}
    return description | {"state": state, "reason": reason} | facts


def algorithm_facts(plugin: Any) -> dict[str, Any]:
    """Return what an algorithm needs and does with its default options, and ``facts``, in a line.

    Views are those of `Algorithm.views`, and memory that of buffers which grow with the pool.

    Args:
        plugin: Its class. What its code does not answer is None.
    """
    from torch import nn

    from ssl_toolkit.interfaces import FeatureAlgorithm, TaskInfo

    needs, views, memory = "labels", None, None
    try:
        tasks = (
            TaskInfo(
                num_classes=2,
                feature_dim=8,
                label_counts=(4, 4),
                unlabeled_count=n,
                max_steps=100,
                model_factory=lambda pretrained: nn.Identity(),
            )
            for n in (100, 200)
        )
        small, large = (plugin(plugin.Config(), task) for task in tasks)
        if not issubclass(plugin, FeatureAlgorithm):
            views = small.views().per_labeled_image
            needs = "unlabeled images" if small.views().needs_unlabeled else needs
        memory = (_bytes(large) - _bytes(small)) // 100
    except Exception:  # of the plugin
        needs = ""
    needs = "frozen features" if issubclass(plugin, FeatureAlgorithm) else needs
    needs = "hidden labels" if plugin.uses_hidden_labels else needs
    parts = [plugin.family, needs and f"needs {needs}"]
    parts += [f"{views} view{'s' * (views > 1)} per labeled image"] if views else []
    parts += [f"{memory} bytes per unlabeled image"] if memory else []
    facts = "; ".join(filter(None, [*parts, summary_of(plugin)]))
    return {
        "family": plugin.family,
        "needs": needs,
        "views_per_labeled_image": views,
        "bytes_per_unlabeled_image": memory,
        "facts": facts,
    }


def summary_of(plugin: type) -> str:
    """Return the first line of the docstring of a class."""
    return next(iter((plugin.__doc__ or "").strip().splitlines()), "")


def _bytes(algorithm: Any) -> int:
    return sum(buffer.nbytes for buffer in algorithm.buffers())
