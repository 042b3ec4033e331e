"""Print every public name with its signature: ``python tests/support/public_api.py``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module

MODULES = ("ssl_toolkit", "ssl_toolkit.image_ops", "ssl_toolkit.ops", "ssl_toolkit.testing")


def surface() -> Iterator[str]:
    """Yield lines of names and signatures; those of members follow their class."""
    for module in MODULES:
        public = import_module(module)
        for name in sorted(public.__all__):
            value = getattr(public, name)
            if name != "__version__":
                yield from _described(f"{module}.{name}", value)


def _described(path: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__qualname__ for base in value.__bases__ if base is not object)
        yield f"class {path}" + (f"({bases})" if bases else "")
        yield from sorted(_members(path, value))
    elif inspect.isfunction(value):
        yield f"{path}{_signature(value)}"
    else:
        yield f"{path} = {value!r}"


def _members(path: str, owner: type) -> Iterator[str]:
    """Yield the members that a class itself defines, and its constructor."""
    annotations = inspect.get_annotations(owner)
    fields = (
        {f.name: f for f in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    )
    for name, annotation in annotations.items():
        if not name.startswith("_") and name != "model_config":  # pydantic's
            message = getattr(annotation, "__forward_arg__", annotation)
            yield f"{path}.{name}: {message}{_default(owner, name, fields)}"
    for name, member in vars(owner).items():
        if name == "__init__" and not fields and inspect.isfunction(member):
            yield f"{path}{_signature(member)}"
        if name.startswith("_") or name in annotations:
            continue
        if isinstance(member, property):
            yield f"{path}.{name}: property -> {member.fget.__annotations__['return']}"
        elif isinstance(member, classmethod | staticmethod):
            yield f"{path}.{name}{_signature(member.__func__)}: {type(member).__name__}"
        elif inspect.isfunction(member):
            yield f"{path}.{name}{_signature(member)}"


class _Bare(str):
    """A text whose repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(function: Callable[..., object]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=_bare(p)) for p in signature.parameters.values()]
    return signature.replace(
        parameters=parameters, return_annotation=_Bare(signature.return_annotation)
    )


def _bare(parameter: inspect.Parameter) -> object:
    annotation = parameter.annotation
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _default(owner: type, name: str, fields: dict[str, dataclasses.Field[object]]) -> str:
    if name in fields and fields[name].default_factory is not dataclasses.MISSING:
        return " = a new one"
    value = vars(owner).get(name, inspect.Parameter.empty)
    if value is inspect.Parameter.empty or inspect.ismemberdescriptor(value):
        return ""
    if isinstance(value, type) or dataclasses.is_dataclass(value):
        return f" = {getattr(value, '__name__', repr(value))}"
    # The fields of a named tuple are descriptors; `_field_defaults` has their defaults.
    if type(value).__name__ == "_tuplegetter":
        defaults = getattr(owner, "_field_defaults", {})
        return f" = {defaults[name]!r}" if name in defaults else ""
    return f" = {value!r}"


if __name__ == "__main__":
    print("\n".join(surface()))
