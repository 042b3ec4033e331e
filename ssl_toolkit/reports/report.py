"""Write the tables and the page of finished folders again."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from ssl_toolkit.comparisons.discover import loose_places
from ssl_toolkit.comparisons.gather import gather, gather_folder
from ssl_toolkit.comparisons.plan_file import PLAN
from ssl_toolkit.comparisons.types import Comparison
from ssl_toolkit.data.images.files import IMAGE_SUFFIXES
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import at_home, check_target
from ssl_toolkit.reports.html import write_report
from ssl_toolkit.reports.tables import FORMAT, NAMES, write_tables
from ssl_toolkit.tabular import TABLES
from ssl_toolkit.text import display_path, display_text

PAGE = "report.html"

_OTHER_FILES = (*IMAGE_SUFFIXES, *TABLES, ".json", ".md", ".pdf", ".txt")


class Report(NamedTuple):
    """What `report` has written."""

    comparison: Comparison
    files: tuple[Path, ...]


def report(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] | None = None,
    baseline: str | None = None,
    allow: Collection[str] = (),
    name: str | None = None,
) -> Report:
    """Gather a comparison, or runs that belong to none, and write tables and page.

    Args:
        folders: one folder of a comparison, or folders of runs.
        output: an HTML file, for the page alone (replaced if it exists), or a folder. None for the
            comparison's own folder, for ``report.html`` in the folder of a single run, and for
            ``report`` here.
        baseline: row that the others are compared with.
        allow: shared keys in which rows may differ, beside those of a comparison's plan.
        name: title.

    Returns:
        The comparison, and the files that were written.

    Raises:
        UserError: a folder is of neither kind, rows are not comparable, or the output folder holds
            such files that no report wrote; nothing was written.
    """
    given = [folders] if isinstance(folders, str | os.PathLike) else folders
    paths = [at_home(folder) for folder in given]
    target = None if output is None else at_home(output)
    compared = [path for path in paths if _is_comparison(path)]
    if compared and len(paths) > 1:
        raise ConfigError(
            f"{display_path(compared[0])} is a comparison: report it alone, or name the runs in it"
        )
    single = not compared and len(paths) == 1
    place = target or (compared[0] if compared else paths[0] / PAGE if single else Path("report"))
    if target is not None and target.suffix.lower() in _OTHER_FILES:
        raise ConfigError(
            f"--output {display_path(target)}: give FILE.html for the page alone, or a folder"
        )
    page_only = place.suffix.lower() in (".html", ".htm")
    targets = [place] if page_only else [place / file for file in (*NAMES, PAGE)]
    for one in targets:
        check_target(one)
    if not page_only and place not in compared:
        _check_ours(place, targets)
    if compared:
        comparison = gather_folder(compared[0], name=name, baseline=baseline, allow=allow)
    else:
        places, algorithms = loose_places(paths)
        comparison = gather(
            places,
            name=name or display_text(paths[0].resolve().name if single else "runs"),
            baseline=baseline,
            allow=allow,
            algorithms=algorithms,
        )
    if not page_only:
        write_tables(comparison, place)
    write_report(comparison, targets[-1])
    return Report(comparison, tuple(targets))


def _is_comparison(path: Path) -> bool:
    return (path / PLAN).exists() or (path / "comparison.yaml").exists()


def _check_ours(folder: Path, targets: Sequence[Path]) -> None:
    """Refuse to replace files that ssl-toolkit didn't write."""
    try:
        content = json.loads((folder / NAMES[0]).read_text(encoding="utf-8"))
        ours = isinstance(content, dict) and content.get("format") == FORMAT
    except (OSError, ValueError):
        ours = False
    foreign = [target for target in targets if target.exists()]
    if foreign and not ours:
        raise ConfigError(
            f"{display_path(foreign[0])} exists and no report wrote it; choose another place "
            "with --output"
        )
