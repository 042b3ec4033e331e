"""Messages about a faulty configuration, with the origin of each key and near names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ssl_toolkit.config.options import fields_of
from ssl_toolkit.config.other_names import OTHER_NAMES, american, our_name
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.config.shorthands import SECTION_FLAGS, SHORTHANDS
from ssl_toolkit.errors import ConfigError, PluginError
from ssl_toolkit.registry import near_names

Path_ = tuple[str, ...]
M = TypeVar("M", bound=BaseModel)

FLAGS = "command line"
"""The origin of flags."""

_NUMBER, _INTEGER, _SWITCH = "must be a number", "must be an integer", "must be true or false"
_MAP = "must be a map of options"
_MESSAGES = {
    "value_error": "{error}",
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
"""Messages by pydantic's type of an error."""


class Faults:
    """Collects faults, each with the origin of its value."""

    def __init__(self, origins: Mapping[Path_, str], section: str) -> None:
        self.messages: list[str] = []
        self.plugin_messages: list[str] = []
        self._origins = origins
        self._section = section

    def add(self, path: Path_, message: str) -> None:
        """Add a fault of one key."""
        lengths = range(len(path), 0, -1)
        known = next((path[:n] for n in lengths if path[:n] in self._origins), ())
        origin = self._origins.get(known, "")
        if known and path[0] in SHORTHANDS:
            path = known
        key = ".".join(path)
        if origin == FLAGS and (len(path) == 1 or key in SECTION_FLAGS.values()):
            key, origin = f"--{key.replace('_', '-').replace('.', '-')}", ""
        text = f"{origin}: {key}: {message}".removeprefix(": ")
        if text not in self.messages:  # fields of a section that one scalar sets
            self.messages.append(text)

    def unknown(self, path: Path_, siblings: Sequence[str]) -> None:
        """Add a fault for an unknown key; `siblings` are the valid keys of its section."""
        self.add(path, f"unknown key{_suggest(path, siblings, self._section)}")

    def validate(self, model: type[M], values: Any, prefix: Path_ = ()) -> M | None:
        """Return an instance, or None after adding every fault that pydantic finds.

        Args:
            model: the class of the instance.
            values: of its fields.
            prefix: the path of keys above its fields.
        """
        try:
            return model.model_validate(values)
        except ValidationError as error:
            self._explain(model, error, prefix)
            return None

    def _explain(self, model: type[BaseModel], error: ValidationError, prefix: Path_) -> None:
        messages: dict[Path_, list[str]] = {}
        inputs: dict[Path_, Any] = {}
        for fault in error.errors(include_url=False):
            unknown = fault["type"] == "extra_forbidden"
            # The last part is then a word of the user's, whatever it looks like.
            inner = fault["loc"][:-1] if unknown else fault["loc"]
            path = prefix + tuple(str(part) for part in inner if not _is_union_tag(part))
            if unknown:
                path += (str(fault["loc"][-1]),)
                self.unknown(path, _siblings(model, path[len(prefix) : -1]))
            else:
                messages.setdefault(path, []).append(_message(fault))
                inputs[path] = fault["input"]
        for path, texts in messages.items():  # one line for all branches of a union
            value = "null" if inputs[path] is None else repr(inputs[path])
            suffix = "" if isinstance(inputs[path], dict) else f" (given {value})"
            self.add(path, " or ".join(texts) + suffix)

    def stop(self) -> None:
        """Raise the faults, if there are any.

        Raises:
            ConfigError: with one message for each fault.
            PluginError: only plugins are at fault.
        """
        if self.messages:
            raise ConfigError(self.messages + self.plugin_messages)
        if self.plugin_messages:
            raise PluginError(self.plugin_messages)


def _message(fault: Any) -> str:
    """Return the message for an error of pydantic's."""
    facts = fault.get("ctx", {})
    template = "must not be empty" if facts.get("min_length") == 1 else _MESSAGES.get(fault["type"])
    message: str = fault["msg"] if template is None else template.format(**facts)
    return message[:1].lower() + message[1:]


def _siblings(model: type[BaseModel], path: Path_) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        inner = getattr(field, "default", None)
        if not isinstance(inner, BaseModel):
            return []
        model = type(inner)
    return [*model.model_fields]


def _suggest(path: Path_, siblings: Sequence[str], section: str) -> str:
    """Return " (did you mean …?)": our key for the name, a near name beside it, or one anywhere."""
    *above, last = path
    prefix = ".".join(above) + "." if above else ""
    keys = [key for key, _ in fields_of(Settings)]
    anywhere = {key.rpartition(".")[2]: key for key in reversed(keys)}
    ours = our_name(last)
    if ours is None and (near := near_names(american(last), siblings, most=1, cutoff=0.7)):
        suggestion = prefix + near[0]
    elif ours or (alias := near_names(last, OTHER_NAMES, most=1, cutoff=0.8)):
        ours = ours or OTHER_NAMES[alias[0]]
        known = ours in anywhere.values()
        suggestion = prefix + ours if ours in siblings else ours if known else f"{section}.{ours}"
    elif near := near_names(last, anywhere, most=1, cutoff=0.7):
        suggestion = anywhere[near[0]]
    elif above and siblings:
        return f"; known here: {', '.join(sorted(siblings))}"
    else:
        return "; `ssl-toolkit run --dry-run` shows all keys"
    return f" (did you mean {suggestion!r}?)"


def _is_union_tag(part: Any) -> bool:
    # pydantic adds the branch of a union ("float", "literal['auto']") to a fault's location.
    branches = ("on", "off", "float", "int", "bool", "str", "constrained-float", "constrained-int")
    return str(part) in branches or "[" in str(part)
