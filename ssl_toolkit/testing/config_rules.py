"""Rules for the options of plugins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from ssl_toolkit.config import yaml
from ssl_toolkit.config.options import Options
from ssl_toolkit.config.run_defaults import check_profiles, profile_options, stated_profiles
from ssl_toolkit.errors import PluginError
from ssl_toolkit.testing.assertions import listed
from ssl_toolkit.testing.rules import RuleViolationError, require
from ssl_toolkit.testing.subject import Subject


def has_default_config(subject: Subject) -> None:
    """`Config()` works without arguments and returns an `Options`.

    Why: most runs set no options.
    Cause: an option without a default, or a default that is out of range.
    """
    config = subject.plugin.Config()
    require(isinstance(config, Options), f"Config() is {config!r}")


def has_frozen_config(subject: Subject) -> None:
    """Options cannot be modified after construction.

    Why: the configuration in the run folder must be the one that the run was trained with.
    Cause: model_config of Config sets frozen to False.
    """
    require(subject.options().model_config.get("frozen"), "model_config has frozen=False")


def rejects_unknown_options(subject: Subject) -> None:
    """An unknown option is rejected with an error that names it.

    Why: a misspelled option would be ignored silently.
    Cause: model_config of Config sets extra to ignore or allow.
    """
    _require_rejection(subject.plugin.Config, "no_such_option", 1)


def rejects_invalid_options(subject: Subject) -> None:
    """A value out of an option's range, or nan, is rejected with an error that names the option.

    Why: a run with an invalid value computes something else, or fails hours later.
    Cause: a validator that clamps, or a type that accepts anything.
    """
    config = subject.plugin.Config
    for name in config.model_fields:
        for value in _invalid_values(_types(config, name)):
            _require_rejection(config, name, value)


def preserves_options_in_yaml(subject: Subject) -> None:
    """Options that are written to YAML and read back are equal.

    Why: configuration files, comparisons and checkpoints store the options as YAML.
    Cause: a type that YAML doesn't support, or a validator that isn't idempotent.
    """
    config = subject.options()
    tree = yaml.parse(yaml.dump(config.model_dump(mode="json")))
    restored = type(config)(**(tree or {}))
    require(restored == config, f"{config!r} became {restored!r}")


def documents_options(subject: Subject) -> None:
    """Every option has a help text, and every number a range.

    Why: `ssl-toolkit show` prints them, and invalid values are rejected by them.
    Cause: option(...) without help, or a number without ge, gt, le or lt.
    """
    config = subject.plugin.Config
    for name, field in config.model_fields.items():
        require((field.description or "").strip(), f"option {name!r} has no help")
        for schema in _types(config, name):
            if schema.get("type") in ("integer", "number"):
                bounded = schema.keys() & {*_OUT_OF_RANGE, "enum"}
                require(bounded, f"option {name!r} is a number without a range")


def has_valid_profiles(subject: Subject) -> None:
    """`profiles` and `Config.for_pretrained` contain settings and options with valid values.

    Why: they only apply with `--profile` and `--pretrained`, which fail otherwise.
    Cause: an option was renamed in Config, but not in the profile; or a profile contains a setting
    for the length or folder of a run.
    """
    plugin = subject.plugin
    options = {f"profile {name}": profile_options(plugin, name) for name in stated_profiles(plugin)}
    options["Config.for_pretrained"] = plugin.Config.for_pretrained
    for profile, values in options.items():
        unknown = sorted(values.keys() - plugin.Config.model_fields.keys())
        require(not unknown, f"{profile} contains unknown options {listed(unknown)}")
        subject.options(**values)
    try:
        check_profiles(plugin, "profiles")
    except PluginError as error:
        raise RuleViolationError(str(error)) from error


_OUT_OF_RANGE: dict[str, Callable[[float], float]] = {
    "minimum": lambda bound: bound - 1,
    "exclusiveMinimum": lambda bound: bound,
    "maximum": lambda bound: bound + 1,
    "exclusiveMaximum": lambda bound: bound,
}
"""A value that violates each kind of bound in a JSON schema."""


def _types(config: type[BaseModel], name: str) -> list[dict[str, Any]]:
    """Return the JSON schemas of the alternatives in an option's type."""
    schema = config.model_json_schema()["properties"][name]
    return [schema, *schema.get("anyOf", [])]


def _invalid_values(schemas: list[dict[str, Any]]) -> Iterator[Any]:
    numbers = [schema for schema in schemas if schema.get("type") in ("integer", "number")]
    texts = [schema for schema in schemas if schema.get("type") == "string"]
    if len(numbers) == 1:
        bounds = numbers[0].keys() & _OUT_OF_RANGE.keys()
        yield from (_OUT_OF_RANGE[bound](numbers[0][bound]) for bound in sorted(bounds))
        yield math.nan
    if texts and all("enum" in schema or "const" in schema for schema in texts):
        yield "no such choice"


def _require_rejection(config: type[BaseModel], name: str, value: Any) -> None:
    try:
        config(**{name: value})
    except ValidationError as error:
        names_option = any(name in fault["loc"] for fault in error.errors())
        require(names_option, f"the error for {name}={value!r} doesn't name the option: {error}")
        return
    raise RuleViolationError(f"{name}={value!r} is accepted")
