"""Settings with the values to try: ``--sweep KEY=V,V``."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer
from ssl_toolkit.errors import ConfigError


def parse_sweep(text: str) -> Layer:
    """Return a layer with the sweep in ``key.path=value,value``.

    Raises:
        ConfigError: The text has another form.
    """
    key, equals, values = text.partition("=")
    if not equals or not key or not values:
        raise ConfigError(f"--sweep {text}: write --sweep section.key=value,value")
    origin, array = f"--sweep {text}", values if values.startswith("[") else f"[{values}]"
    return Layer(origin, {"sweep": {key: yaml.parse(array, origin)}})


def combinations(
    sweep: Mapping[str, Any], section: str, sections: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Iterate over the changes of each combination of values that concerns an algorithm.

    Raises:
        ConfigError: The values of a key are no list, or one is given twice.
    """
    keys = []
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{key}: give a list of values (given {values!r})")
        for value in values:
            if values.count(value) > 1:
                raise ConfigError(f"sweep.{key}: {value} is given twice; give each once")
        if key.partition(".")[0] in {section, "algorithm"} or key.partition(".")[0] not in sections:
            keys.append(key)
    for values in itertools.product(*(sweep[key] for key in keys)):
        yield dict(zip(keys, values, strict=True))


def describe(key: str, value: Any, section: str) -> str:
    """Return a change as a part of a row's name."""
    return f"{key.removeprefix(f'{section}.').removeprefix('algorithm.')}={value}"
