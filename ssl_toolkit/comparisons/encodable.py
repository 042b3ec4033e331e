"""Types of text in files of comparisons, which any encoding can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from ssl_toolkit.text import display_text


def _encodable(value: Any) -> Any:
    """Escape bytes that are not UTF-8, which names of files and settings may contain."""
    if isinstance(value, Mapping):
        return {display_text(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return display_text(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_encodable)]
Keys = Annotated[dict[str, Any], BeforeValidator(_encodable)]
"""Settings by dotted key, with values as written in ``config.yaml``."""
