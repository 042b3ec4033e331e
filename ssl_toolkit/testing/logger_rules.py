"""Rules for loggers, checked in temporary folders."""

from __future__ import annotations

import copy
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssl_toolkit.interfaces import Logger, RunInfo
from ssl_toolkit.testing.assertions import differing, listed, no_global_draws
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject

ROWS: list[dict[str, float | int]] = [
    {"step": 1, "train.loss": 2.5, "train.loss.supervised": 2.25, "lr": 0.03, "seconds": 0.5},
    {"step": 2, "train.loss": 2.25, "lr": 0.03, "seconds": 1.0, "validation.accuracy": 0.5},
    {"step": 3, "train.loss": 1e-30, "lr": 0.0, "seconds": 1.5, "train.pair_both": 0},
]
"""Rows as in ``metrics.jsonl``, with different names, integers and floats."""

CONFIG: dict[str, Any] = {
    "algo": "simple",
    "seed": 7,
    "lr": 0.03,
    "loggers": ["some"],
    "classes": None,
    "simple": {"temperature": 0.5, "nested": {"deep": True}},
    "text": "with 'quotes', commas: and ünïcode",
}


def declares_packages(subject: Subject) -> None:
    """`packages` is a tuple of module names.

    Why: packages are checked before the run folder is created.
    Cause: a string instead of a tuple, or a requirement with a version.
    """
    packages = subject.plugin.packages
    valid = isinstance(packages, tuple) and all(
        isinstance(name, str) and name.replace(".", "").isidentifier() for name in packages
    )
    require(valid, f"packages is {packages!r}")


def accepts_any_row(subject: Subject) -> None:
    """Rows with different names, integers and floats are logged without an error.

    Why: the names of metrics differ between rows and between algorithms.
    Cause: columns of the first row, or a name that is split at its dot.
    """
    with _run() as run:
        logger = subject.plugin(run)
        for row in ROWS:
            logger.log(dict(row))
        logger.finish(_summary("completed"))


def has_one_line_note(subject: Subject) -> None:
    """`note` is a string of at most one line.

    Why: it is printed at the start of the run.
    Cause: note is None or has several lines.
    """
    with _run() as run:
        logger = subject.plugin(run)
        note = logger.note
        logger.finish(_summary("completed"))
    require(isinstance(note, str) and "\n" not in note, f"note is {note!r}")


def does_not_modify_arguments(subject: Subject) -> None:
    """Rows, configuration and summary are not modified.

    Why: they are passed to other loggers and written to files.
    Cause: row.pop('step'), or values converted in place.
    """
    row, summary = dict(ROWS[0]), _summary("completed")
    with _run() as run:
        _log_run(subject, run, row, summary)
        require(row == ROWS[0], f"a row became {row}")
        require(summary == _summary("completed"), f"the summary became {summary}")
        require(run.config == CONFIG, f"the configuration became {run.config}")


def accepts_every_status(subject: Subject) -> None:
    """`finish` accepts every status of a run, also without a row, and repeatedly in a process.

    Why: interrupted and failed runs have no test scores.
    Cause: summary['test'] is read although it may be None.
    """
    for status in ("completed", "interrupted", "failed"):
        with _run() as run:
            subject.plugin(run).finish(_summary(status))


def continues_resumed_runs(subject: Subject) -> None:
    """A second logger continues in the same folder, and repeated rows are no error.

    Why: a resumed run repeats its last rows.
    Cause: a file that is overwritten, or a step that must be unique.
    """
    with _run() as run:
        first: Logger = subject.plugin(run)
        for step in range(1, 7):
            first.log({**ROWS[0], "step": step})
        first.finish(_summary("interrupted"))
        sizes = {path: path.stat().st_size for path in run.folder.rglob("*") if path.is_file()}
        _log_run(subject, replace(run, step=5), {**ROWS[0], "step": 6}, _summary("completed"))
        for path, size in sizes.items():
            require(path.exists(), f"{path.name} of the first logger is missing")
            require(path.stat().st_size >= size / 2, f"{path.name} lost rows of the first logger")


def preserves_process_state(subject: Subject) -> None:
    """Working directory, signal handlers, gradient mode and random states are unchanged.

    Why: a logger must not change the results of its run.
    Cause: a library that sets signal handlers, changes the directory or draws random names.
    """
    with _run() as run:  # imports of the first call may draw
        _log_run(subject, run, dict(ROWS[0]), _summary("completed"))
    with _run() as run, no_global_draws("it"):
        before = _process_state()
        _log_run(subject, run, dict(ROWS[0]), _summary("completed"))
        changed = differing(before, _process_state())
    require(not changed, f"{listed(changed)} changed")


@contextmanager
def _run() -> Iterator[RunInfo]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve() / "simple-digits-s7"
        folder.mkdir()
        config = copy.deepcopy(CONFIG)
        yield RunInfo(folder, folder.name, "simple", 7, config, step=0, group="group")


def _log_run(
    subject: Subject, run: RunInfo, row: dict[str, float | int], summary: dict[str, Any]
) -> None:
    logger: Logger = subject.plugin(run)
    logger.log(row)
    logger.finish(summary)


def _summary(status: str) -> dict[str, Any]:
    """Return a summary as in ``summary.json``."""
    test = {"accuracy": 0.75, "loss": 0.5, "count": 10} if status == "completed" else None
    return {
        "status": status,
        "steps": 3,
        "seconds": 1.5,
        "best": None,
        "test": test,
        "reason": "" if status == "completed" else "the reason",
    }


def _process_state() -> dict[str, Any]:
    state = {"working directory": os.getcwd(), "gradient mode": torch.is_grad_enabled()}
    if threading.current_thread() is threading.main_thread():
        handlers = (signal.SIGINT, signal.SIGTERM)
        state |= {f"handler of {number.name}": signal.getsignal(number) for number in handlers}
    return state
