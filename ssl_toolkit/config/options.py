"""`Options`: the frozen, self-describing settings of everything that can be configured."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """A frozen set of options; every field has a default, a range and a meaning.

    Unknown keys, values out of range and non-finite numbers are refused. Text is converted to the
    type of its field, so that ``"1e-3"`` is a number where a number is wanted and stays text
    where text is wanted.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )

    reference: ClassVar[dict[str, Any]] = {}
    """The values under ``--profile reference`` of the options that differ from their defaults."""
    for_pretrained: ClassVar[dict[str, Any]] = {}
    """Defaults where training starts from pre-trained weights, of the options that need others."""


def option(default: Any, *, help: str, source: str = "", **bounds: Any) -> Any:
    """Declare one option.

    Args:
        default: the value when the user gives none.
        help: what it means, with its unit, in one line.
        source: where the default comes from (paper and section, or a measurement).
        bounds: pydantic's bounds: ``gt``, ``ge``, ``lt``, ``le``, ``min_length``, ...

    >>> class Example(Options):
    ...     threshold: float = option(0.95, ge=0, le=1, help="least confidence", source="eq. 4")
    >>> Example(threshold="0.5").threshold
    0.5
    """
    return Field(default, description=help, json_schema_extra={"source": source}, **bounds)
