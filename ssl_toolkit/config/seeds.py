"""Seeds as numbers and ranges: ``0,5-9``."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from ssl_toolkit.config.options import split_names

MOST_SEEDS = 10_000
"""In one range: more is a typing error, and would take all memory."""


def _ranges(value: Any) -> Any:
    """Seeds with ``0-2`` written out; whatever is neither list nor text is left to pydantic."""
    values = split_names(value)
    if not isinstance(values, list):
        return values
    seeds: list[Any] = []
    for part in values:
        if not isinstance(part, str):
            seeds.append(part)
            continue
        match = re.fullmatch(r"([0-9]+)(?:\s*-\s*([0-9]+))?", part)
        if match is None:
            raise PydanticCustomError(
                "seeds", f"{part!r} is no seed; write whole numbers from 0 and ranges, as in 0,5-9"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MOST_SEEDS:
            raise PydanticCustomError(
                "seeds", f"{part} is no range of seeds; write the smaller one first, as in 0-2"
            )
        seeds += range(first, last + 1)
    return seeds


def _once(seeds: list[int]) -> list[int]:
    if twice := [seed for seed, count in Counter(seeds).items() if count > 1]:
        raise PydanticCustomError("seeds", f"{twice[0]} is given twice; give each once")
    return seeds


Seeds = Annotated[list[int], BeforeValidator(_ranges), AfterValidator(_once)]
