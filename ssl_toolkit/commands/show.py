"""``ssl-toolkit show``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from ssl_toolkit import registry
from ssl_toolkit.commands.options import JSON, toolkit_command
from ssl_toolkit.commands.screen import echo, echo_json, echo_wrapped
from ssl_toolkit.config.options import Options
from ssl_toolkit.config.plugin_names import kind_of
from ssl_toolkit.errors import PluginError


@toolkit_command
@click.argument("name")
@JSON
def command(name: str, as_json: bool) -> None:
    """Show the plugin NAME: its distribution, and its options with default, range and source.

    NAME may be an algorithm with add-ons, such as fixmatch+logit_adjustment.
    """
    from ssl_toolkit.commands.list import describe

    entries = [registry.find(group, name) for group in registry.GROUPS if registry.has(group, name)]
    if not entries:
        names = {entry.name for group in registry.GROUPS for entry in registry.entries(group)}
        raise PluginError(
            f"nothing registered is called {name!r}{registry.did_you_mean(name, names)}; "
            "`ssl-toolkit list` shows all names"
        )
    plugins = []
    for entry in entries:
        plugin, _ = registry.attempt(entry)
        plugins.append(describe(entry, True) | ({} if plugin is None else _details(plugin)))
    if as_json:
        echo_json(plugins)
        return
    for description in plugins:
        echo(f"{description['name']} ({kind_of(description['group'])})")
        echo(f"  distribution: {description['distribution']} {description['version']}")
        reason = f" ({description['reason']})" if description["reason"] else ""
        echo_wrapped(f"state: {description['state']}{reason}", 4, first=2)
        if line := description.get("facts") or description.get("summary"):
            echo_wrapped(line, 2, first=2)
        for key, value in description.get("defaults", {}).items():
            echo_wrapped(f"{key}: {value}", 4, first=2)
        for key, value in description.get("run_defaults", {}).items():
            echo_wrapped(f"run default: {key} = {value}", 4, first=2)
        for name, values in description.get("profiles", {}).items():
            for key, value in values.items():
                if not key.startswith("options."):
                    echo_wrapped(f"profile {name}: {key} = {value}", 4, first=2)
        for option in description.get("options", []):
            facts = [option["type"], option["range"]]
            for key, values in description.get("profiles", {}).items():
                if (own := f"options.{option['name']}") in values:
                    facts.append(f"profile {key}: {values[own]}")
            if "for_pretrained" in option:
                facts.append(f"pre-trained: {option['for_pretrained']}")
            message = ", ".join(filter(None, facts))
            echo_wrapped(f"{option['name']} = {option['default']}  ({message})", 4, first=2)
            source = f" [{option['source']}]" if option["source"] else ""
            echo_wrapped(f"{option['meaning']}{source}", 6, first=6)


def _details(plugin: type) -> dict[str, Any]:
    """Return the summary, options and defaults of a plugin class."""
    from ssl_toolkit.commands.list import summary_of
    from ssl_toolkit.config.run_defaults import stated_profiles
    from ssl_toolkit.config.settings import flatten

    details: dict[str, Any] = {"summary": summary_of(plugin)}
    config = getattr(plugin, "Config", None)
    if config is not None:
        details["options"] = list(_options(config))
    if dataclasses.is_dataclass(getattr(plugin, "defaults", None)):
        details["defaults"] = dataclasses.asdict(plugin.defaults)  # type: ignore[attr-defined]
    if stated := getattr(plugin, "run_defaults", None):
        details["run_defaults"] = dict(flatten(stated))
    details["profiles"] = {k: dict(flatten(v)) for k, v in stated_profiles(plugin).items()}
    return details


def _options(config: Any, prefix: str = "") -> Iterator[dict[str, Any]]:
    """Yield the options of a plugin, and those of its add-ons by dotted names."""
    for name, field in config.model_fields.items():
        if isinstance(field.default, Options):
            yield from _options(type(field.default), f"{prefix}{name}.")
        else:
            option = _option(config, name)
            yield option | {"name": f"{prefix}{name}"}


def _option(config: Any, name: str) -> dict[str, Any]:
    field = config.model_fields[name]
    schema = config.model_json_schema()["properties"][name]
    option = {
        "name": name,
        "default": field.default,
        "type": type_text(schema),
        "range": range_text(schema),
        "meaning": field.description or "",
        "source": (field.json_schema_extra or {}).get("source", ""),
    }
    values = config.for_pretrained
    return option | ({"for_pretrained": values[name]} if name in values else {})


def type_text(schema: dict[str, Any]) -> str:
    """Return the type of an option, of its JSON schema."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " | ".join(type_text(branch) for branch in schema["anyOf"])
    return str(schema.get("type", "any"))


def range_text(schema: dict[str, Any]) -> str:
    """Return the bounds of an option, of its JSON schema."""
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    limits = {key: branch[key] for branch in [schema, *schema.get("anyOf", [])] for key in branch}
    return ", ".join(f"{sign} {limits[key]:g}" for key, sign in signs.items() if key in limits)
