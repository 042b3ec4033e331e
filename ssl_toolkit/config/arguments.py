"""Check the arguments that a setting passes to a class of another library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ssl_toolkit.errors import ConfigError
from ssl_toolkit.registry import did_you_mean


def check_arguments(
    key: str,
    arguments: Mapping[str, Any],
    function: Callable[..., Any],
    name: str,
    reserved: Collection[str] = (),
) -> None:
    """Check the names of arguments against the signature of a function or class.

    Args:
        key: Key of the setting, for messages.
        arguments: Value of the setting.
        function: What is called with them.
        name: Name of `function`, for messages.
        reserved: Arguments that the toolkit sets.

    Raises:
        ConfigError: Names the first argument that does not exist, with similar names.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    known = {one.name for one in parameters if one.kind in kinds} - {"self", *reserved}
    is_open = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    for argument in arguments:
        if argument in reserved:
            raise ConfigError(f"{key}.{argument}: the toolkit sets this argument; leave it out")
        if argument not in known and not is_open:
            raise ConfigError(
                f"{key}.{argument}: {name} has no such argument{did_you_mean(argument, known)}; "
                f"it takes {', '.join(sorted(known))}"
            )
