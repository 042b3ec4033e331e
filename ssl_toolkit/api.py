"""The version of the contract with plugins, and how parts of it are retired."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from ssl_toolkit import __version__

API_VERSION = (1, 0)
"""Major and minor number of what plugins implement and use: the names that ``ssl_toolkit``,
``ssl_toolkit.ops`` and ``ssl_toolkit.image_ops`` export. The major number grows when a plugin may
have to change, the minor one when something is added. A class declares its version as
``api_version = (1, 0)``."""

T = TypeVar("T", bound=Callable[..., object])


def api_mismatch(plugin: object) -> str:
    """Return why a plugin made for another API can't be used, as part of a line.

    Args:
        plugin: A class; one without ``api_version`` is taken as made for this API.

    Returns:
        The reason; empty when its major number is ours and its minor one not above ours.
    """
    made_for = getattr(plugin, "api_version", API_VERSION)
    match made_for:
        case (int(major), int(minor)):
            if major == API_VERSION[0] and minor <= API_VERSION[1]:
                return ""
            way_out = "the plugin" if major < API_VERSION[0] else "ssl-toolkit"
            return f"made for plugin API {major}.{minor}, {this_api()}; upgrade {way_out}"
        case _:
            return f"its api_version is {made_for!r}; write {API_VERSION} for (major, minor)"


def signature_mismatch(plugin: type) -> str:
    """Return which method can't be called as its interface declares, as part of a line.

    Args:
        plugin: A subclass of an interface.

    Returns:
        The reason; empty if all methods accept the arguments.
    """
    for base in plugin.__mro__:
        if not base.__module__.startswith("ssl_toolkit.interfaces."):
            continue
        for name, declared in vars(base).items():
            own = inspect.getattr_static(plugin, name, declared)
            if name.startswith("_") or own is declared or not inspect.isfunction(own):
                continue
            if isinstance(declared, property):
                return f"{plugin.__name__}.{name} is a method; write @property above it"
            if not inspect.isfunction(declared):
                continue
            expected, actual = inspect.signature(declared), inspect.signature(own)
            every = expected.parameters.values()
            keywords = [part.name for part in every if part.kind is part.KEYWORD_ONLY]
            try:
                actual.bind(*range(len(every) - len(keywords)), **dict.fromkeys(keywords))
            except TypeError:
                return (
                    f"{plugin.__name__}.{name}({', '.join(actual.parameters)}) does not take the "
                    f"arguments of {base.__name__}.{name}({', '.join(expected.parameters)})"
                )
    return ""


def this_api() -> str:
    """Return the versions of package and API, as part of a line."""
    return f"and ssl-toolkit {__version__} has {'.'.join(map(str, API_VERSION))}"


def deprecated(since: str, instead: str) -> Callable[[T], T]:
    """Deprecate a public function or class: each use warns.

    It warns during one minor version of ssl-toolkit and is removed in the next; a test fails if it
    is still there.

    Args:
        since: The version that deprecates it, such as ``0.2``.
        instead: The replacement, such as ``use mixup``.

    >>> deprecated("0.2", "use sum")(max)([1, 2])  # doctest: +SKIP
    DeprecationWarning: max is deprecated since ssl-toolkit 0.2 and gone in 0.3; use sum
    """
    from typing_extensions import deprecated as mark

    major, minor, *_ = map(int, since.split("."))

    def decorate(target: T) -> T:
        name = target.__qualname__
        gone = f"{major}.{minor + 1}"
        text = f"{name} is deprecated since ssl-toolkit {since} and gone in {gone}; {instead}"
        return mark(text)(target)

    return decorate
