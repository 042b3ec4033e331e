"""Write the reference page of the settings: ``python tests/support/settings_page.py``.

Its output is ``docs/reference/settings.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ssl_toolkit.commands.show import range_text, type_text
from ssl_toolkit.config.options import declaration_of, default_text, fields_of
from ssl_toolkit.config.settings import Settings

INTRODUCTION = """\
# Settings

Every setting of a run. A setting with a flag is set on the command line, in a `--config` file, or
by `--set KEY=VALUE`; one without is set in a file or by `--set`. Later sources win: defaults,
profile, run defaults of the algorithm, files in order, flags, `--set`. The options of an algorithm
are in a section of its name: `ssl-toolkit show NAME` lists them. `ssl-toolkit run --dry-run`
prints the resolved configuration.

The last column lists what follows from a setting: the *data*, the *table* (which images can be
used, and their labels), the *strangers*, the *split*, the initial *weights*, the *draws* of images
and views. The rows of a comparison must agree on every setting but those
marked *free in comparisons*. `resume` keeps every setting but those marked *recorded* (it has a
flag for them, and `record.json` notes the change), *moved* (data of the same content may be
elsewhere) and *free* (no result depends on them).

This page is generated: `python tests/support/settings_page.py > docs/reference/settings.md`.
"""


def page() -> str:
    """Return the reference page as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    schema = Settings.model_json_schema()
    tables: dict[str, list[str]] = {"": []}
    for key, field in fields_of(Settings):
        section, _, name = key.rpartition(".")
        if isinstance(field.default, BaseModel):
            flag = declaration_of(field).flag
            tables[key] = [(field.description or "") + (f"; flag `--{key}`" if flag else "")]
            continue
        tables[section].append(_row(key, field, _property(schema, section, name)))
    for section, rows in tables.items():
        if section:
            text, *rows = rows
            yield f"\n## `{section}`\n\n{text[:1].upper()}{text[1:]}.\n"
        else:
            yield "## Top level\n"
        yield "| Key | Flag | Type | Default | Meaning | Affects, comparing, resuming |"
        yield "|---|---|---|---|---|---|"
        yield from rows


def _property(schema: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    result: dict[str, Any] = schema["properties"]
    if section:
        holder = result[section]
        branches = [holder, *holder.get("anyOf", []), *holder.get("oneOf", [])]
        reference = next(branch["$ref"] for branch in branches if "$ref" in branch)
        result = schema["$defs"][reference.rpartition("/")[2]]["properties"]
    property_schema: dict[str, Any] = result[name]
    return property_schema


def _row(key: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    declared = declaration_of(field)
    flag = f"`--{key.replace('_', '-').replace('.', '-')}`" if declared.flag else ""
    kind = ", ".join(filter(None, [type_text(schema).removesuffix(" | null"), range_text(schema)]))
    default = default_text(field) or "none"
    if isinstance(field.default, bool):
        default = str(field.default).lower()
    roles: list[str] = [*declared.affects]
    roles += [] if declared.compared else ["free in comparisons"]
    roles += [] if declared.resume == "fixed" else [f"resume: {declared.resume}"]
    cells = [f"`{key}`", flag, kind, default, field.description or "", ", ".join(roles)]
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
