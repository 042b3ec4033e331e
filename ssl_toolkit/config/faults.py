"""What is wrong with a configuration, with where it came from and a near name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ssl_toolkit.config.other_names import OTHER_NAMES
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.errors import ConfigError, PluginError
from ssl_toolkit.registry import near_names

Path_ = tuple[str, ...]

FLAGS = "command line"
"""Where the values of flags come from."""

_NUMBER, _INTEGER, _SWITCH = "must be a number", "must be an integer", "must be true or false"
_MAP = "must be a map of options"
_SAID = {
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "finite_number": "must be a finite number",
    "int_parsing": _INTEGER,
    "int_type": _INTEGER,
    "int_from_float": _INTEGER,
    "int_parsing_size": "must be a smaller integer",
    "bool_parsing": _SWITCH,
    "bool_type": _SWITCH,
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": _MAP,
    "model_type": _MAP,
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_too_short": "must have {min_length} characters or more",
    "too_short": "must have {min_length} items or more",
}
"""What is wrong with a value, by pydantic's name for the kind of fault."""


class Faults:
    """Collects faults with where each value came from."""

    def __init__(self, origins: Mapping[Path_, str], section: str) -> None:
        self.messages: list[str] = []
        self.plugin_messages: list[str] = []
        self._origins = origins
        self._section = section

    def add(self, path: Path_, message: str) -> None:
        """A fault of one key."""
        origin = next(
            (self._origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._origins),
            "",
        )
        key = ".".join(path)
        if origin == FLAGS and len(path) == 1:
            key, origin = f"--{key.replace('_', '-')}", ""
        self.messages.append(f"{origin}: {key}: {message}".removeprefix(": "))

    def unknown(self, path: Path_, siblings: Sequence[str]) -> None:
        """A key that nobody knows; `siblings` are the known ones beside it."""
        self.add(path, f"unknown key{_suggest(path, siblings, self._section)}")

    def check(self, model: type[BaseModel], values: Any, prefix: Path_) -> Any:
        """An instance, or None after adding every fault."""
        try:
            return model.model_validate(values)
        except ValidationError as error:
            told: dict[Path_, list[str]] = {}
            given: dict[Path_, Any] = {}
            for fault in error.errors(include_url=False):
                unknown = fault["type"] == "extra_forbidden"
                # The last part is then a word of the user's, whatever it looks like.
                inner = fault["loc"][:-1] if unknown else fault["loc"]
                path = prefix + tuple(str(part) for part in inner if not _is_union_tag(part))
                if unknown:
                    path += (str(fault["loc"][-1]),)
                    self.unknown(path, _siblings(model, path[len(prefix) : -1]))
                else:
                    told.setdefault(path, []).append(_said(fault))
                    given[path] = fault["input"]
            for path, messages in told.items():  # one line for all branches of a union
                shown = "null" if given[path] is None else repr(given[path])
                value = "" if isinstance(given[path], dict) else f" (given {shown})"
                self.add(path, " or ".join(messages) + value)
            return None

    def stop(self) -> None:
        """Raise what was found, if anything.

        Raises:
            ConfigError: lists it, one message for each fault.
            PluginError: only plugins are at fault.
        """
        messages = list(dict.fromkeys(self.messages))
        if messages:
            raise ConfigError(messages + self.plugin_messages)
        if self.plugin_messages:
            raise PluginError(self.plugin_messages)


def _said(fault: Any) -> str:
    """A fault that pydantic found, in plain words."""
    facts = fault.get("ctx", {})
    own = "must not be empty" if facts.get("min_length") == 1 else _SAID.get(fault["type"])
    message: str = fault["msg"] if own is None else own.format(**facts)
    return message[:1].lower() + message[1:]


def _siblings(model: type[BaseModel], path: Path_) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        inner = getattr(field, "default", None)
        if not isinstance(inner, BaseModel):
            return []
        model = type(inner)
    return [*model.model_fields]


def _all_keys() -> list[str]:
    keys = []
    for name, field in Settings.model_fields.items():
        keys.append(name)
        if isinstance(field.default, BaseModel):
            keys += [f"{name}.{inner}" for inner in type(field.default).model_fields]
    return keys


def _suggest(path: Path_, siblings: Sequence[str], section: str) -> str:
    """A near name: beside the key, else what another tool's name means, else anywhere."""
    *above, last = path
    prefix = ".".join(above) + "." if above else ""
    anywhere = {key.rpartition(".")[2]: key for key in reversed(_all_keys())}
    if near := near_names(last, siblings, most=1, cutoff=0.7):
        found = prefix + near[0]
    elif alias := near_names(last, OTHER_NAMES, most=1, cutoff=0.8):
        ours = OTHER_NAMES[alias[0]]
        known = ours in anywhere.values()
        found = prefix + ours if ours in siblings else ours if known else f"{section}.{ours}"
    elif near := near_names(last, anywhere, most=1, cutoff=0.7):
        found = anywhere[near[0]]
    elif above and siblings:
        return f"; known here: {', '.join(sorted(siblings))}"
    else:
        return "; `ssl-toolkit run --dry-run` shows all keys"
    return f", did you mean {found!r}?"


def _is_union_tag(part: Any) -> bool:
    # pydantic adds the branch of a union ("float", "literal['auto']") to a fault's location.
    branches = ("on", "off", "float", "int", "bool", "str", "constrained-float", "constrained-int")
    return str(part) in branches or "[" in str(part)
