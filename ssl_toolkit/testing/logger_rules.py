"""Rules on loggers, checked in temporary folders."""

from __future__ import annotations

import copy
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.interfaces import Logger, RunInfo
from ssl_toolkit.testing.rules import require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import listed

Row = dict[str, float | int]

ROWS: list[Row] = [
    {"step": 1, "train.loss": 2.5, "train.loss.supervised": 2.25, "lr": 0.03, "seconds": 0.5},
    {"step": 2, "train.loss": 2.25, "lr": 0.03, "seconds": 1.0, "validation.accuracy": 0.5},
    {"step": 3, "train.loss": 1e-30, "lr": 0.0, "seconds": 1.5, "train.pair_both": 0},
]
"""As they stand in ``metrics.jsonl``: names come and go, and numbers are whole or not."""

CONFIG = {
    "algo": "simple",
    "seed": 7,
    "lr": 0.03,
    "loggers": ["some"],
    "classes": None,
    "simple": {"temperature": 0.5, "nested": {"deep": True}},
    "words": "with 'quotes', commas: and ünïcode",
}


@rule(
    "loggers",
    why="packages are checked before the run folder is created.",
    cause="a single string instead of a tuple, or a requirement with its version",
)
def packages_are_modules(subject: Subject) -> None:
    """`packages` is a tuple of names of modules."""
    packages = subject.plugin.packages
    good = isinstance(packages, tuple) and all(
        isinstance(name, str) and name.replace(".", "").isidentifier() for name in packages
    )
    require(good, f"packages is {packages!r}")


@rule(
    "loggers",
    why="names of metrics differ between rows and between algorithms.",
    cause="columns fixed by the first row, or a name that is split at its dot",
)
def rows_are_taken(subject: Subject) -> None:
    """Rows with changing names, integers and floats are accepted without an error."""
    with _run() as run:
        logger = _start(subject, run)
        for row in ROWS:
            logger.log(dict(row))
        logger.finish(_summary("completed"))


@rule(
    "loggers",
    why="it is shown to the user once, in one line.",
    cause="note is set to None, or to several lines",
)
def note_is_one_line(subject: Subject) -> None:
    """`note` is a string of at most one line."""
    with _run() as run:
        logger = _start(subject, run)
        note = logger.note
        logger.finish(_summary("completed"))
    require(isinstance(note, str) and "\n" not in note, f"note is {note!r}")


@rule(
    "loggers",
    why="rows and the configuration are passed to other loggers and to files.",
    cause="row.pop('step'), or values converted in place",
)
def what_is_given_is_left_alone(subject: Subject) -> None:
    """Rows, configuration and summary are not written to."""
    with _run() as run:
        config = copy.deepcopy(dict(run.config))
        logger = _start(subject, run)
        given = dict(ROWS[0])
        logger.log(given)
        require(given == ROWS[0], f"a row was changed to {given}")
        summary = _summary("completed")
        logger.finish(summary)
        require(summary == _summary("completed"), "the summary was changed")
        require(run.config == config, "the configuration was changed")


@rule(
    "loggers",
    why="runs are interrupted and fail, and then have no test scores.",
    cause="summary['test'] is read without checking that it exists",
)
def every_end_is_taken(subject: Subject) -> None:
    """`finish` accepts every way a run can end, also without a row, several in one process."""
    for status in ("completed", "interrupted", "failed"):
        with _run() as run:
            _start(subject, run).finish(_summary(status))


@rule(
    "loggers",
    why="a resumed run repeats its last rows.",
    cause="a file that is overwritten, or a step that must be unique",
)
def resumed_runs_go_on(subject: Subject) -> None:
    """A second logger continues in the same folder, and repeated rows are no error."""
    with _run() as run:
        first = _start(subject, run)
        for step in range(1, 7):
            first.log({**ROWS[0], "step": step})
        first.finish(_summary("interrupted"))
        kept = {path: path.stat().st_size for path in run.folder.rglob("*") if path.is_file()}
        second = _start(subject, RunInfo(**{**vars(run), "step": 5}))
        second.log({**ROWS[0], "step": 6})
        second.finish(_summary("completed"))
        gone = [path.name for path in kept if not path.exists()]
        shorter = [p.name for p, size in kept.items() if p.exists() and p.stat().st_size < size / 2]
        require(not gone, f"{listed(gone)} of the first process are gone")
        require(not shorter, f"{listed(shorter)} of the first process lost their content")


@rule(
    "loggers",
    why="a logger that moves the process around changes the run beside it.",
    cause="a library that sets signal handlers, changes the folder, or draws random names",
)
def the_process_is_left_alone(subject: Subject) -> None:
    """Folder, signal handlers, gradient mode and random states of the process stay as they are."""
    with _run() as run:  # what is imported by the first one may draw
        _start(subject, run).finish(_summary("completed"))
    with _run() as run:
        before = _process()
        logger = _start(subject, run)
        logger.log(dict(ROWS[0]))
        logger.finish(_summary("completed"))
        after = _process()
    changed = [name for name, value in before.items() if value != after[name]]
    require(not changed, f"{listed(changed)} changed")


@contextmanager
def _run() -> Iterator[RunInfo]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve() / "simple-digits-s7"
        folder.mkdir()
        config = copy.deepcopy(CONFIG)
        yield RunInfo(folder, folder.name, "simple", 7, config, step=0, group="mine")


def _start(subject: Subject, run: RunInfo) -> Logger:
    logger: Logger = subject.plugin(run)
    return logger


def _summary(status: str) -> dict[str, Any]:
    """As in ``summary.json``."""
    test = {"accuracy": 0.75, "loss": 0.5, "count": 10} if status == "completed" else None
    return {
        "status": status,
        "steps": 3,
        "seconds": 1.5,
        "best": None,
        "test": test,
        "reason": "" if status == "completed" else "why it ended",
    }


def _process() -> dict[str, Any]:
    states = random_states()
    found = {
        "the folder": os.getcwd(),
        "gradient mode": torch.is_grad_enabled(),
        "python's random state": states["python"],
        "numpy's random state": states["numpy"],
        "torch's random state": states["torch"].tolist(),
    }
    if threading.current_thread() is threading.main_thread():
        found |= {
            f"the handler of {one.name}": signal.getsignal(one)
            for one in (signal.SIGINT, signal.SIGTERM)
        }
    return found
