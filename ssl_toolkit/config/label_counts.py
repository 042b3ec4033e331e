"""The numbers of labels of a label curve, and the rows that they multiply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.config.options import split_names
from ssl_toolkit.errors import ConfigError

LabelKey = Literal["labels_per_class", "num_labels"]
LABEL_KEYS: tuple[LabelKey, ...] = ("labels_per_class", "num_labels")
"""Settings that may have several numbers in a comparison."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, int) else split_names(value)


def _ascending(counts: list[int]) -> list[int]:
    if twice := [count for count, times in Counter(counts).items() if times > 1]:
        raise PydanticCustomError("counts", f"{twice[0]} is given twice; give each once")
    return sorted(counts)


Counts = Annotated[
    list[Annotated[int, Field(ge=1)]], BeforeValidator(_listed), AfterValidator(_ascending)
]
"""Numbers of labels as ``4``, ``1,2,4`` or a list, in ascending order."""


def curve_of(counts: Mapping[LabelKey, Sequence[int] | None]) -> LabelKey | None:
    """Return the setting with several numbers of labels; None if each has at most one.

    Raises:
        ConfigError: Both settings are given, and one has several numbers.
    """
    given = [key for key in LABEL_KEYS if counts[key]]
    several = [key for key in given if len(counts[key] or ()) > 1]
    if several and len(given) > 1:
        raise ConfigError(
            "--labels-per-class and --num-labels: a label curve has numbers of one kind; leave one "
            "of them out"
        )
    return several[0] if several else None


def refuse_other_labels(
    key: LabelKey, given: Iterable[tuple[str, Mapping[str, Any]]], sweep: Collection[str]
) -> None:
    """Refuse settings that contradict several numbers of labels.

    Args:
        key: The setting with several numbers.
        given: Origins of settings, and their trees without those of a comparison.
        sweep: Keys with values to try.

    Raises:
        ConfigError: Labels are set in another way, too.
    """
    flag = f"--{key.replace('_', '-')}"
    others = ("labels", "split", *LABEL_KEYS)
    found = [(origin, name) for origin, tree in given for name in others if tree.get(name)]
    found += [("sweep", name) for name in sweep if name in others]
    if found:
        raise ConfigError(
            [
                f"{origin}: {name}: can't be used with several numbers of {flag}, which apply to "
                "all rows; leave one of them out"
                for origin, name in found
            ]
        )


def with_labels(config: RunConfig, key: LabelKey, count: int) -> RunConfig:
    """Return the configuration with a number of labels, in place of that of a recipe."""
    return config.with_settings(**dict.fromkeys(("labels", *LABEL_KEYS)) | {key: count})


def row_name(method: str, key: LabelKey, count: int) -> str:
    """Return the name of a row with its number of labels."""
    if key == "labels_per_class":
        return f"{method}, {count} per class"
    return f"{method}, {count} label{'s' if count != 1 else ''}"
