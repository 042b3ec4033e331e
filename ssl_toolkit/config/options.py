"""Declare options and settings once; flags, lists and the reference page derive from it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo


class Options(BaseModel):
    """A frozen set of options; every field has a default, a range and a meaning.

    Unknown keys, values out of range and non-finite numbers are refused. Text is converted to the
    type of its field, so that ``"1e-3"`` is a number where a number is expected and stays text
    where text is expected.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )

    for_pretrained: ClassVar[dict[str, Any]] = {}
    """Defaults where training starts from pre-trained weights, of the options that need others."""


def option(
    default: Any, *, help: str, source: str = "", in_steps: bool = False, **bounds: Any
) -> Any:
    """Declare one option.

    Args:
        default: The value when the user gives none.
        help: What it means, with its unit, in one line.
        source: Where the default comes from (paper and section, or a measurement).
        in_steps: True if it counts optimizer steps, so that ``--scale`` shortens it.
        bounds: Pydantic's bounds: ``gt``, ``ge``, ``lt``, ``le``, ``min_length``, ...

    >>> class Example(Options):
    ...     threshold: float = option(0.95, ge=0, le=1, help="least confidence", source="eq. 4")
    >>> Example(threshold="0.5").threshold
    0.5
    """
    extra: dict[str, Any] = {"source": source, "in_steps": in_steps}
    return Field(default, description=help, json_schema_extra=extra, **bounds)


Affects = Literal["data", "table", "strangers", "split", "weights", "draws"]
Resume = Literal["fixed", "moved", "recorded", "free"]
"""How `resume` handles another value: ``fixed`` refuses it; ``moved`` accepts it for data whose
content is the same; ``recorded`` takes it from a flag and notes it in record.json; ``free`` accepts
it, because no result depends on it."""


@dataclass(frozen=True)
class Declaration:
    """Facts about a setting beside its type, default, bounds and help."""

    flag: bool = False
    """True if the command line has a flag for it."""
    metavar: str = ""
    """The flag's placeholder for a value; empty for switches and choices."""
    repeatable: bool = False
    """True if the flag may be repeated."""
    default_text: str = ""
    """The default in words, where the value doesn't say it."""
    when_open: Any = None
    """The value that replaces a default of None, if it is the same for all runs."""
    affects: tuple[Affects, ...] = ()
    """Which of these depend on it: ``data`` (the images and all that depends on them), ``table``
    (which of them can be used, and their labels), the strangers, the split, the initial weights, or
    the draws of images and views."""
    compared: bool = True
    """True if the rows of a comparison must agree on it."""
    follows_steps: bool = False
    """True if it follows from the number of steps, which other budgets choose for each row."""
    resume: Resume = "fixed"
    resume_help: str = ""
    """Help of the flag of `resume`; empty if it has none."""


def setting(default: Any, *, help: str, source: str = "", **facts: Any) -> Any:
    """Declare a setting: an `option` with the facts of a `Declaration`; a metavar means a flag."""
    role = {name: facts.pop(name) for name in [*facts] if name in Declaration.__dataclass_fields__}
    role.setdefault("flag", "metavar" in role)
    field = option(default, help=help, source=source, **facts)
    field.json_schema_extra["declaration"] = Declaration(**role)
    return field


def declaration_of(field: FieldInfo) -> Declaration:
    """Return the declaration of a field; the default one for a plain `option`."""
    extra = field.json_schema_extra
    declaration = extra.get("declaration") if isinstance(extra, dict) else None
    return declaration if isinstance(declaration, Declaration) else Declaration()


def is_in_steps(field: FieldInfo) -> bool:
    """Return True if an option counts optimizer steps."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("in_steps"))


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Iterate over the fields of a model and of its sections, by dotted key."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}", field
        if isinstance(field.default, BaseModel):
            yield from fields_of(type(field.default), f"{prefix}{name}.")


def default_text(field: FieldInfo) -> str:
    """Return the default as the help shows it; empty if there is nothing to say."""
    declared = declaration_of(field)
    if declared.default_text:
        return declared.default_text
    value = field.default if declared.when_open is None else declared.when_open
    return str(value) if isinstance(value, int | float | str) and value is not False else ""


def sentence(text: str, default: str = "") -> str:
    """Return a help text as a sentence that ends with the default."""
    return f"{text[:1].upper()}{text[1:]}{f' (default: {default})' if default else ''}."


_WORDS = {"true": True, "false": False, "null": None, "none": None}


def plain(value: Any) -> Any:
    """Return a value with numbers, booleans and null in place of texts that read as such.

    Scalars of YAML stay text until their type is known, which a signature often does not state.
    """
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if not isinstance(value, str) or value.lower() in _WORDS:
        return _WORDS[value.lower()] if isinstance(value, str) else value
    for number in (int, float):
        with contextlib.suppress(ValueError):
            if math.isfinite(converted := number(value)):
                return converted
    return value


Arguments = Annotated[dict[str, Any], BeforeValidator(plain)]
"""A map of arguments whose types are not declared."""


def split_names(value: Any) -> Any:
    """Return the names in ``a,b``; anything else unchanged."""
    if not isinstance(value, str):
        return value
    return [name.strip() for name in value.split(",") if name.strip()]


Names = Annotated[list[str], BeforeValidator(split_names)]
