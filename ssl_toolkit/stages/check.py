"""Check that a folder of stages is complete and consistent."""

from __future__ import annotations

from pathlib import Path

from ssl_toolkit.errors import ModelError, ToolkitError
from ssl_toolkit.runs.check import RunCheck, check_run
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.stages.run import reopen
from ssl_toolkit.stages.summary import (
    CONFIG,
    SUMMARY,
    StagesSummary,
    labels_path,
    run_path,
    summarize_stages,
)


def check_folder(folder: Path) -> RunCheck:
    """Check the runs, pseudo labels and summary of all stages, without writing anything.

    Args:
        folder: Folder of the stages.
    """
    try:
        config = reopen(folder)
    except ToolkitError as error:
        return RunCheck("damaged", [*error.messages], [CONFIG])
    result = RunCheck("completed", checked=[CONFIG])
    for stage in config.stages:
        run = RunFolder(run_path(folder, stage.name))
        if not run.summary.exists():
            result.status = "interrupted"
            continue
        run_check = check_run(run.path)
        if run_check.status != "completed":
            result.status = run_check.status
        result.faults += [f"{stage.name}: {fault}" for fault in run_check.faults]
        result.checked += [f"stages/{stage.name}/{name}" for name in run_check.checked]
        result.data = result.data or run_check.data
        labels = labels_path(folder, stage.name)
        if not stage.sources.labels_from:
            continue
        if not labels.exists():
            result.faults.append(f"pseudo_labels/{labels.name}: missing")
        elif run.pseudo_labels.exists() and labels.read_bytes() != run.pseudo_labels.read_bytes():
            result.faults.append(f"pseudo_labels/{labels.name}: differs from that of its run")
        result.checked.append(f"pseudo_labels/{labels.name}")
    if not result.faults and result.status == "completed":
        result.faults += _summary(folder, summarize_stages(config, folder))
        result.checked.append(SUMMARY)
    return result


def _summary(folder: Path, expected: StagesSummary) -> list[str]:
    try:
        stored = StagesSummary.read(folder / SUMMARY)
    except FileNotFoundError:
        return [f"{SUMMARY}: missing"]
    except ModelError as error:
        return [*error.messages]
    names = [a.name for a, b in zip(expected.stages, stored.stages, strict=False) if a != b]
    if len(expected.stages) != len(stored.stages):
        return [f"{SUMMARY}: other stages than in {CONFIG}"]
    return [f"{SUMMARY}: {', '.join(names)} differ from the runs"] if names else []
