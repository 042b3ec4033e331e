"""Pages of the public API: names, signatures and docstrings of the code."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import pprint
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import ssl_toolkit
from site_pages.docstrings import fields_of, markdown, statements
from site_pages.tables import cell, table, toctree

PARTS = {
    "models": ("Trained models", ("inference", "estimator")),
    "runs": (
        "Runs and comparisons",
        ("runs", "stages", "multirun", "suites", "comparisons", "reports", "reproduction"),
    ),
    "plugins": ("Interfaces of plugins", ()),
    "errors": ("Errors", ("errors",)),
}
"""Pages of the package itself: title, and the packages whose names are on it; () for the rest."""

MODULES = {
    "ssl_toolkit.ops": "Formulas",
    "ssl_toolkit.image_ops": "Operations on images",
    "ssl_toolkit.testing": "Contract kit",
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield an index and the pages of the public names."""
    by_page = {key: [] for key in PARTS}
    for name in sorted(ssl_toolkit.__all__):
        if name != "__version__":
            by_page[_page_of(getattr(ssl_toolkit, name))].append(name)
    index = []
    for key, names in by_page.items():
        title = PARTS[key][0]
        yield f"api/{key}", _page(title, ssl_toolkit, names)
        index.append((key, title, "ssl_toolkit", len(names)))
    for path, title in MODULES.items():
        module = importlib.import_module(path)
        key = path.rpartition(".")[2]
        yield f"api/{key}", _page(title, module, sorted(module.__all__))
        index.append((key, title, path, len(module.__all__)))
    rows = [[f"[{t}]({key}.md)", f"`{module}`", str(count)] for key, t, module, count in index]
    yield (
        "api/index",
        "# Python API\n\nThe public names, made from signatures and docstrings. "
        "[Python](../../how-to/python.md) shows how they are used, and "
        "[Stability of the API](../../plugins/stability.md) which of them stay compatible.\n\n"
        + table(["page", "module", "names"], rows)
        + toctree(key for key, *_ in index),
    )


def _page_of(value: object) -> str:
    module = str(getattr(value, "__module__", "")) if callable(value) else ""
    part = [*module.split("."), ""][1]
    return next((key for key, (_, packages) in PARTS.items() if part in packages), "plugins")


def _page(title: str, module: ModuleType, names: list[str]) -> str:
    rows = [[f"{{py:obj}}`{name}`", cell(_summary(name, getattr(module, name)))] for name in names]
    parts = [
        f"# {title}\n",
        f"```{{py:currentmodule}} {module.__name__}\n```\n",
        table(["name", "summary"], rows),
        *(_described(name, getattr(module, name)) for name in names),
    ]
    return "\n".join(parts)


def _summary(name: str, value: object) -> str:
    documented = inspect.isclass(value) or inspect.isfunction(value)
    text = (inspect.getdoc(value) or "") if documented else _constant_text(name)
    return text.split("\n")[0]


def _constant_text(name: str) -> str:
    """Return the text below the assignment of a public constant, of the module that has it."""
    for path, module in [*sys.modules.items()]:
        if path.startswith("ssl_toolkit.") and name in vars(module):
            for statement, after in itertools.pairwise(statements(module)):
                targets = getattr(statement, "targets", [getattr(statement, "target", None)])
                text = getattr(getattr(after, "value", None), "value", None)
                if [getattr(one, "id", "") for one in targets] == [name] and isinstance(text, str):
                    return inspect.cleandoc(text)
    return ""


def _described(name: str, value: object) -> str:
    if inspect.isclass(value):
        return _directive("class", name, _class_text(value), _constructor(value), outer=True)
    if inspect.isfunction(value):
        return _directive("function", name, markdown(value.__doc__ or ""), signature(value))
    text = pprint.pformat(value, width=90, sort_dicts=False)
    shown = f"`{text}`" if "\n" not in text else f"```python\n{text}\n```"
    return _directive("data", name, f"{markdown(_constant_text(name))}\n\n{shown}")


def _directive(kind: str, name: str, body: str, sign: str = "", *, outer: bool = False) -> str:
    fence = ":" * (5 if outer else 4)
    return f"{fence}{{py:{kind}}} {name}{sign}\n\n{body.strip()}\n{fence}\n"


def _class_text(owner: type) -> str:
    documented = (owner.__doc__ or "") if "__doc__" in vars(owner) else ""
    # A dataclass without a docstring has its signature as one.
    text = "" if documented.startswith(f"{owner.__name__}(") else markdown(documented)
    bases = [base for base in owner.__bases__ if base.__name__ in ssl_toolkit.__all__]
    parts = [text, *(f"Base: {{py:obj}}`{base.__name__}`" for base in bases)]
    fields = list(fields_of(owner))
    parts += [_attribute(*field) for field in fields]
    known = {name for name, *_ in fields}
    for name, member in vars(owner).items():
        if not name.startswith("_") and name not in known:
            parts.append(_member(name, member))
    return "\n\n".join(filter(None, parts))


def _attribute(name: str, kind: str, text: str) -> str:
    return f"::::{{py:attribute}} {name}\n:type: {kind}\n\n{markdown(text)}\n::::"


def _member(name: str, member: object) -> str:
    if isinstance(member, property):
        text = markdown(member.fget.__doc__ or "")
        kind = inspect.signature(member.fget).return_annotation
        return f"::::{{py:property}} {name}\n:type: {kind}\n\n{text}\n::::"
    option = ""
    if isinstance(member, classmethod | staticmethod):
        option = f":{type(member).__name__}:\n"
        member = member.__func__
    if not inspect.isfunction(member):
        return ""
    first = option != ":staticmethod:\n"
    text = markdown(member.__doc__ or "")
    return f"::::{{py:method}} {name}{signature(member, first=first)}\n{option}\n{text}\n::::"


def _constructor(owner: type) -> str:
    own = vars(owner).get("__init__")
    if dataclasses.is_dataclass(owner) or not inspect.isfunction(own):
        return ""
    return re.sub(r" -> None$", "", signature(own, first=True))


def signature(function: Callable[..., object], *, first: bool = False) -> str:
    """Return the signature of a function as its source has it.

    Args:
        function: A function of a class or module.
        first: True to leave out the first parameter, `self` or `cls`.
    """
    shown = inspect.signature(function)
    parameters = []
    for place, parameter in enumerate(shown.parameters.values()):
        if not (first and place == 0):
            parameters.append(parameter.replace(annotation=_Bare.of(parameter.annotation)))
    returned = _Bare.of(shown.return_annotation)
    return str(shown.replace(parameters=parameters, return_annotation=returned))


class _Bare(str):
    """A text whose repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__

    @classmethod
    def of(cls, annotation: object) -> object:
        return cls(annotation) if isinstance(annotation, str) else annotation
