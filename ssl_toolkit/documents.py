"""JSON files with a schema and a format number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import check_format, write_json
from ssl_toolkit.text import display_path


class Part(BaseModel):
    """A part of a `Document`: checked, immutable, without unknown keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False
    )


class Document(Part):
    """The schema of a JSON file. A subclass is in the module that writes and reads its file."""

    FORMAT: ClassVar[int] = 1
    """The number of the layout; a change that older versions can't read increases it."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a file.

        Raises:
            FileNotFoundError: the file is not found.
            ModelError: it is damaged or not readable, or of an unknown format.
        """
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(tree, dict):
                raise ValueError("not a JSON object")
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{display_path(path)}: damaged or not readable: {error}") from error
        check_format(path, tree.pop("format", None), cls.FORMAT)
        content = json.dumps(tree)
        del tree  # a large file isn't in memory three times
        try:
            return cls.model_validate_json(content, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ModelError(f"{display_path(path)}: damaged: {place}: {first['msg']}") from error

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: as `write_json`.
        """
        write_json(path, {"format": self.FORMAT, **self.tree()})

    def tree(self) -> dict[str, Any]:
        """Return the content in plain types, without the format number."""
        return self.model_dump(mode="json")
