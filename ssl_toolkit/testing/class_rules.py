"""Rules for the class of any plugin."""

from __future__ import annotations

import inspect

from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import INTERFACES, Subject

_INTERFACES = "ssl_toolkit.interfaces."


def has_docstring(subject: Subject) -> None:
    """The class has a docstring that describes it.

    Why: `ssl-toolkit show` prints its first line, by which users choose a plugin.
    Cause: the class only inherits a docstring.
    """
    text = inspect.cleandoc(vars(subject.plugin).get("__doc__") or "")
    require(len(text.split()) > 2, f"the docstring is {text!r}")


def inherits_from_no_plugin(subject: Subject) -> None:
    """The class does not inherit from another concrete plugin.

    Why: a change of the parent would silently change the results of its subclasses.
    Cause: a variant that subclasses another plugin; share functions and options instead.
    """
    parents = [
        parent.__name__
        for parent in subject.plugin.__mro__[1:]
        if issubclass(parent, INTERFACES[subject.kind])
        and not (inspect.isabstract(parent) or parent.__module__.startswith(_INTERFACES))
    ]
    require(not parents, f"{subject.plugin.__name__} inherits from {' and '.join(parents)}")
