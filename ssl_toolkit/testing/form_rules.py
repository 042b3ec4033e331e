"""Rules on the class and its options, shared by several kinds of plugin."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from ssl_toolkit import registry
from ssl_toolkit.config import yaml
from ssl_toolkit.config.options import Options
from ssl_toolkit.testing.rules import BrokenRuleError, require, rule
from ssl_toolkit.testing.subject import INTERFACES, Subject

CONFIGURED = ("algorithms", "augmenters", "launchers")
TUNED = ("algorithms", "augmenters")


@rule(
    *registry.GROUPS,
    why="`ssl-toolkit show` prints the first line of the docstring; users choose by it.",
    cause="the class has no docstring of its own",
)
def is_described(subject: Subject) -> None:
    """The class says in its docstring what it is."""
    text = inspect.cleandoc(vars(subject.plugin).get("__doc__") or "")
    require(len(text.split()) > 2, f"the docstring is {text!r}")


@rule(
    *registry.GROUPS,
    why="a change of the parent would silently change its children's results.",
    cause="a variant was derived from another plugin; share functions and options instead",
)
def is_final(subject: Subject) -> None:
    """The class inherits from no other plugin that can be used itself."""
    interface = INTERFACES[subject.kind]
    parents = [
        parent.__name__
        for parent in subject.plugin.__mro__[1:]
        if issubclass(parent, interface) and not inspect.isabstract(parent)
    ]
    require(not parents, f"{subject.plugin.__name__} inherits from {' and '.join(parents)}")


@rule(
    *CONFIGURED,
    why="a run without a section of options is the first thing that users try.",
    cause="an option without a default, or a default outside its own range",
)
def config_constructs(subject: Subject) -> None:
    """`Config()` works without arguments and is an `Options`."""
    config = subject.plugin.Config()
    require(isinstance(config, Options), f"Config() is {config!r}")


@rule(
    *CONFIGURED,
    why="the configuration in the folder of a run has to be what the run was trained with.",
    cause="model_config of Config sets frozen to False",
)
def config_is_frozen(subject: Subject) -> None:
    """No option can be set after the options are made."""
    config = subject.options()
    for name in type(config).model_fields:
        try:
            setattr(config, name, getattr(config, name))
        except (ValidationError, AttributeError, TypeError):
            continue
        raise BrokenRuleError(f"option {name!r} can be set")
    require(config.model_config.get("frozen"), "model_config has frozen=False")


@rule(
    *CONFIGURED,
    why="a misspelled option would be ignored, and a run would not be what its user believes.",
    cause="model_config of Config sets extra to ignore or allow",
)
def config_refuses_unknown_keys(subject: Subject) -> None:
    """An option that doesn't exist is refused by its name."""
    _refuses(subject.plugin.Config, "no_such_option", 1)


@rule(
    *CONFIGURED,
    why="a value out of range trains something else than its name says, or fails hours later.",
    cause="a validator that clamps, or a type that takes anything",
)
def config_refuses_bad_values(subject: Subject) -> None:
    """Every value out of an option's range, and nan, is refused by the option's name."""
    for name, bad in _bad_values(subject.plugin.Config):
        _refuses(subject.plugin.Config, name, bad)


@rule(
    *CONFIGURED,
    why="configuration files, comparisons and resumed runs carry the options as YAML.",
    cause="a type that YAML doesn't have, or a validator that changes a value each time",
)
def config_survives_yaml(subject: Subject) -> None:
    """Options written as YAML and read again are equal."""
    config = subject.options()
    tree = yaml.parse(yaml.dump(config.model_dump(mode="json")))
    again = type(config)(**(tree or {}))
    require(again == config, f"{config!r} became {again!r}")


@rule(
    *CONFIGURED,
    why="`ssl-toolkit show` prints them, and wrong values are refused by them.",
    cause="option(...) without help, or a number without ge, gt, le or lt",
)
def options_are_described(subject: Subject) -> None:
    """Every option has a meaning, and every number a range."""
    config = subject.plugin.Config
    for name, field in config.model_fields.items():
        require((field.description or "").strip(), f"option {name!r} has no help")
        for branch in _branches(config, name):
            if branch.get("type") in ("integer", "number"):
                bounded = set(branch) & {*_BOUNDS}
                require(bounded or "enum" in branch, f"option {name!r} is a number without range")


@rule(
    *TUNED,
    why="`--profile reference` is checked when it is asked for, which may be rarely.",
    cause="an option was renamed, but not in Config.reference",
)
def reference_profile_is_valid(subject: Subject) -> None:
    """`Config.reference` names options, with values in their range."""
    _check_defaults(subject, "reference")


@rule(
    *TUNED,
    why="runs with `--pretrained` use them, and no other run does.",
    cause="an option was renamed, but not in Config.for_pretrained",
)
def defaults_for_pretrained_are_valid(subject: Subject) -> None:
    """`Config.for_pretrained` names options, with values in their range."""
    _check_defaults(subject, "for_pretrained")


def _check_defaults(subject: Subject, name: str) -> None:
    config = subject.plugin.Config
    given = getattr(config, name)
    unknown = sorted(given.keys() - config.model_fields.keys())
    require(not unknown, f"Config.{name} names {unknown}, which are no options")
    subject.options(**given)


_BOUNDS: dict[str, Callable[[float], float]] = {
    "minimum": lambda m: m - 1,
    "exclusiveMinimum": lambda m: m,
    "maximum": lambda m: m + 1,
    "exclusiveMaximum": lambda m: m,
}
"""For each bound of a JSON schema, a value that it forbids."""


def _branches(config: type[BaseModel], name: str) -> list[dict[str, Any]]:
    """The alternatives of an option's type, as JSON schemas."""
    schema = config.model_json_schema()["properties"][name]
    return [schema, *schema.get("anyOf", [])]


def _bad_values(config: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name in config.model_fields:
        numbers = [b for b in _branches(config, name) if b.get("type") in ("integer", "number")]
        texts = [b for b in _branches(config, name) if b.get("type") == "string"]
        if len(numbers) == 1:
            yield from ((name, bad(numbers[0][k])) for k, bad in _BOUNDS.items() if k in numbers[0])
            yield name, math.nan
        if texts and all("enum" in branch or "const" in branch for branch in texts):
            yield name, "no such choice"


def _refuses(config: type[BaseModel], name: str, value: Any) -> None:
    try:
        config(**{name: value})
    except ValidationError as error:
        named = any(name in fault["loc"] for fault in error.errors())
        require(named, f"{name}={value!r} is refused, but not by its name: {error}")
        return
    raise BrokenRuleError(f"{name}={value!r} is accepted")
