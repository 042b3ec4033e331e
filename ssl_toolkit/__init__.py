"""Semi-supervised image classification: many images, few labels, numbers you can trust.

The public names are those that ``__init__.pyi`` imports. They are loaded on first use, so that
``import ssl_toolkit`` costs nothing.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {
    name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.MULTILINE)
}
"""Where each public name is defined."""

__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
