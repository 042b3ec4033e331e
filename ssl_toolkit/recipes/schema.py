"""The form of the files in ``configs/recipes``."""

from __future__ import annotations

from typing import Any, Literal

from ssl_toolkit.config.options import Options, option

Texts = list[str]


class Published(Options):
    """A published number and who measured it."""

    top1: float = option(0.0, ge=0, le=100, help="test accuracy in percent")
    by: str = option("", min_length=1, help="who measured it")
    note: str = option("", help="what to know about the number")
    labels: int | Literal["all"] | None = option(None, help="number of labeled images, or all")
    method: str = option("", help="name of the method in the table")


class Row(Options):
    """One row of a table."""

    parts: Texts = option(
        [], help="names of parts, those of another file as FILE.NAME; later ones win"
    )
    settings: dict[str, Any] = option({}, help="settings of this row; they win over its parts")
    deviations: Texts = option([], help="where the row differs from what was published")
    published: Published | None = option(None, help="number, where the file names no JSON file")
    weights_of: str | None = option(None, help="row whose run makes the initial weights")
    automatic: bool = option(
        False, help="use the row for runs of its algorithm, backbone, pretrained and data set"
    )


class Grid(Options):
    """Rows of a table that are a product: one for each combination of parts."""

    table: str = option("", min_length=1, help="name of the table")
    axes: list[Texts] = option([[""]], min_length=1, help="names of parts, a list for each axis")
    parts: Texts = option([], help="parts of every row, which precede those of the axes")
    published: dict[str, float] = option({}, help="test accuracy in percent, by name of the row")
    by: str = option("the benchmark's authors", min_length=1, help="who measured the numbers")


class RecipeFile(Options):
    """A file of recipes: those of a paper or of a benchmark."""

    title: str = option("-", min_length=1, help="paper or benchmark")
    source: str = option("", help="origin of the settings that it doesn't state")
    published: str | None = option(None, help="name of a JSON file with its numbers")
    tables: dict[str, str] = option({}, help="titles of the tables, by name")
    deviations: Texts = option([], help="where every row differs from what was published")
    parts: dict[str, dict[str, Any]] = option(
        {}, help="named pieces of configuration; `deviations` in one holds for its rows"
    )
    rows: dict[str, Row] = option({}, help="rows, by TABLE/NAME")
    grids: list[Grid] = option([], help="tables that are a product")
