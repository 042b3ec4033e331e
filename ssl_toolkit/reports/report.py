"""Write the tables and the page of a comparison or of runs."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from ssl_toolkit.comparisons.discover import loose_runs
from ssl_toolkit.comparisons.gather import gather, gather_plan
from ssl_toolkit.comparisons.schema import CONFIG, PLAN, Comparison, read_failures, read_plan
from ssl_toolkit.data.images.files import IMAGE_SUFFIXES
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.files import at_home, check_target
from ssl_toolkit.reports.html.page import PAGE, write_report
from ssl_toolkit.reports.tables import NAMES, write_tables
from ssl_toolkit.runs.check import refuse_contradictions
from ssl_toolkit.tabular import TABLES
from ssl_toolkit.text import display_path

_OTHER_FILES = (*IMAGE_SUFFIXES, *TABLES, ".json", ".md", ".pdf", ".txt")


class Report(NamedTuple):
    """The result of `report`."""

    comparison: Comparison
    files: tuple[Path, ...]
    """The files that were written."""


def report(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] | None = None,
    baseline: str | None = None,
    allow: Collection[str] = (),
    name: str | None = None,
    levels: Sequence[float] = (),
) -> Report:
    """Write the tables and the page of a comparison, or of runs outside of one.

    Args:
        folders: Path to a comparison, or paths to runs.
        output: Path to an HTML file, for the page alone (replaced if it exists), or to a folder.
            None for the comparison's own folder, for ``report.html`` in the folder of a single
            run, and for the folder ``report`` for several runs.
        baseline: Row that the others are compared with.
        allow: Shared settings in which rows may differ, in addition to those of a comparison.
        name: Title.
        levels: Validation accuracies in (0, 1] whose seconds to report; by default 90 % and 95 % of
            that of the upper bound, or of the best row.

    Returns:
        The comparison, and the files that were written.

    Raises:
        UserError: A folder is of neither kind, rows are not comparable, the files of a completed
            run contradict each other, or the output folder has such files that are not of a
            report; nothing is written.
    """
    if wrong := [level for level in levels if not 0 < level <= 1]:
        raise ConfigError(f"--level {wrong[0]:g}: must be an accuracy above 0 and at most 1")
    paths = [at_home(f) for f in ([folders] if isinstance(folders, str | os.PathLike) else folders)]
    compared = [path for path in paths if any((path / name).exists() for name in (PLAN, CONFIG))]
    if compared and len(paths) > 1:
        raise ConfigError(
            f"{display_path(compared[0])} is a comparison: report it alone, or name the runs in it"
        )
    single = not compared and len(paths) == 1
    default = compared[0] if compared else paths[0] / PAGE if single else Path("report")
    target = default if output is None else at_home(output)
    suffix = target.suffix.lower()
    if output is not None and suffix in _OTHER_FILES:
        raise ConfigError(
            f"--output {display_path(target)}: give FILE.html for the page alone, or a folder"
        )
    page_only = suffix in (".html", ".htm")
    files = [target] if page_only else [target / file for file in (*NAMES, PAGE)]
    for file in files:
        check_target(file)
    if not page_only and target not in compared:
        _refuse_foreign(files)
    if compared:
        plan = read_plan(compared[0])
        changes = {
            "name": name or plan.name,
            "baseline": baseline or plan.baseline,
            "allow": (*plan.allow, *allow),
        }
        plan = plan.model_copy(update=changes)
        comparison = gather_plan(plan, compared[0], read_failures(compared[0]), levels)
    else:
        title = name or (paths[0].resolve().name if single else "runs")
        comparison = gather(
            loose_runs(paths), name=title, baseline=baseline, allow=allow, levels=levels
        )
    refuse_contradictions(run.folder for run in comparison.runs if run.completed)
    if not page_only:
        write_tables(comparison, target)
    write_report(comparison, files[-1])
    return Report(comparison, tuple(files))


def _refuse_foreign(files: Sequence[Path]) -> None:
    """Refuse to replace files that are not of a report."""
    existing = [file for file in files if file.exists()]
    try:
        if existing:
            Comparison.read(files[0])
    except (FileNotFoundError, ModelError) as error:
        problem = str(error) if isinstance(error, ModelError) else f"{NAMES[0]} not found"
        raise ConfigError(
            f"{display_path(existing[0])} exists and is not of a report ({problem}); choose "
            "another --output"
        ) from error
