"""Where a run goes: looked at before anything is read, made when there is something to write."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ssl_toolkit.config.settings import Settings
from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import check_writable
from ssl_toolkit.locking import LOCK, hold
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.text import display_path


class Output:
    """The folder of a new run, which no other process may write to until the block ends.

    Args:
        settings: of the run.
        overwrite: whether a run that is in the folder may be replaced.
        restart: whether one may that ended before its first checkpoint.

    Raises:
        ModelError: the folder exists (and may not be replaced), is in use, or can't be made.
    """

    def __init__(self, settings: Settings, *, overwrite: bool, restart: bool = False) -> None:
        self._lock: ExitStack | None = None
        path = Path("runs" if settings.output is None else settings.output)
        if settings.output is not None and os.path.lexists(path):
            if not path.is_dir():
                raise ModelError(
                    f"--output {display_path(path)}: there is a file of that name; choose "
                    "another name"
                )
            if not overwrite and not (restart and _is_bare_start(path)):
                raise ModelError(_taken(path))
            if not RunFolder(path).summary.exists() and not _is_bare_start(path):
                raise ModelError(
                    f"--output {display_path(path)}: not the folder of a run, so it is not "
                    "overwritten"
                )
            check_writable(path, f"--output {display_path(path)}")
            self._lock = hold(path)
        else:
            check_writable(path, f"--output {display_path(path)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    def make(self, settings: Settings) -> RunFolder:
        """Make the folder, or empty it; a default name gets a number when it is taken.

        Args:
            settings: resolved.

        Raises:
            ModelError: another run has made it in the meantime, or it can't be made.
        """
        try:
            if settings.output is None:
                path = _numbered(Path("runs"), default_name(settings))
            else:
                path = Path(settings.output)
                if self._lock is not None:
                    _empty(path)
                    return RunFolder(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir()
        except FileExistsError as error:
            raise ModelError(_taken(Path(settings.output or "runs"))) from error
        except OSError as error:
            place = settings.output or "runs"
            raise ModelError(f"--output {place}: {error.strerror or error}") from error
        self._lock = hold(path)
        return RunFolder(path)


def default_name(settings: Settings) -> str:
    """``<algo>-<dataset>-s<seed>``, from settings that are resolved."""
    if settings.data:
        path = Path(settings.data).resolve()
        data = path.stem if path.is_file() else path.name
    else:
        data = (settings.dataset or "").rpartition(":")[2]
    return f"{settings.algo.rpartition(':')[2]}-{data or 'data'}-s{settings.seed}"


def _taken(path: Path) -> str:
    return (
        f"--output {display_path(path)}: the folder exists; choose another name, resume with "
        f"`ssl-toolkit resume {display_path(path)}`, or replace it with --overwrite"
    )


def _numbered(parent: Path, name: str) -> Path:
    parent.mkdir(exist_ok=True)
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _is_bare_start(path: Path) -> bool:
    """Whether nothing is in a folder but what a run writes, and no summary yet."""
    folder = RunFolder(path)
    if folder.summary.exists():
        return False
    properties = (name for name, kind in vars(RunFolder).items() if isinstance(kind, property))
    own = {LOCK, folder.last.parent.name, *(getattr(folder, name).name for name in properties)}
    names = {entry.name for entry in path.iterdir()}
    return all(name in own or ".partial" in name for name in names)


def _empty(path: Path) -> None:
    """Remove a run but for its lock; the summary first, so that the rest is no run any more."""
    RunFolder(path).summary.unlink(missing_ok=True)
    for entry in [*path.iterdir()]:
        if entry.name == LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
