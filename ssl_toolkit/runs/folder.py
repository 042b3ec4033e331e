"""The folder of a run: its files, and the output folder of a new run."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import Layer, ResolvedConfig, filled, validate
from ssl_toolkit.config.plugin_names import bare
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.errors import ConfigError, DataError, ModelError
from ssl_toolkit.files import check_writable
from ssl_toolkit.locking import LOCK, clear, hold
from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.summary import RunSummary, Status
from ssl_toolkit.text import display_path, summarize


class RunFolder:
    """The files of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Path = path / "config.yaml"
        """The resolved configuration."""
        self.record: Path = path / "record.json"
        """Versions, device, distributions and fingerprint."""
        self.split: Path = path / "split.json"
        """The images of each part."""
        self.pseudo_labels: Path = path / "pseudo_labels.csv"
        """A copy of the setting's file; only if there is one."""
        self.leaks: Path = path / "leaks.json"
        """Images that are in several parts, if there are any."""
        self.metrics: Path = path / "metrics.jsonl"
        """One JSON object per line."""
        self.table: Path = path / "metrics.csv"
        """The same rows as a table, written at the end of a run whatever its status."""
        self.log: Path = path / "log.txt"
        """The lines of the terminal."""
        self.summary: Path = path / "summary.json"
        """Status and results."""
        self.prior: Path = path / "prior.json"
        """Estimated class shares of the pool, for ``--prior``; not without unlabeled images."""
        self.predictions: Path = path / "predictions.npz"
        """Test and validation probabilities and labels."""
        self.last: Path = path / "checkpoints" / "last.pt"
        """The newest checkpoint."""
        self.best: Path = path / "checkpoints" / "best.pt"
        """Weights with the best validation accuracy."""
        self.model: Path = path / "model"
        """The exported model."""
        self.card: Path = self.model / "README.md"
        """The model card."""

    def files(self) -> list[Path]:
        """Return the path of every file above, whether it exists or not."""
        return [path for path in vars(self).values() if path != self.path]

    def read_summary(self) -> RunSummary:
        """Read the summary.

        Raises:
            ModelError: the folder is not that of a run, or the file is damaged.
        """
        try:
            return RunSummary.read(self.summary)
        except FileNotFoundError as error:
            message = f"{display_path(self.path)}: not the folder of a run (no summary.json)"
            if (self.path / "plan.json").is_file():
                message += (
                    "; it is that of a comparison, whose runs are in runs/: repeat the command "
                    "that started it to resume it"
                )
            raise ModelError(message) from error

    def read_record(self) -> RunRecord:
        """Read the record that was written at the start.

        Raises:
            ModelError: it is missing or damaged.
        """
        try:
            return RunRecord.read(self.record)
        except FileNotFoundError as error:
            raise ModelError(f"{display_path(self.record)}: not found") from error

    def read_config(self) -> ResolvedConfig:
        """Read the configuration that the run started with.

        Raises:
            UserError: the file is missing or damaged, or one of its plugins is not installed.
        """
        config = validate([Layer(str(self.config), yaml.read(self.config))])
        return filled(config, {}, str(self.config))

    def reopen(self, data: Path | None = None, *, initial: bool = False) -> ResolvedConfig:
        """Read the configuration, with the files of the run.

        Args:
            data: path to the images of the run, if they were moved.
            initial: True to keep the weights to start from, which a checkpoint replaces.

        Raises:
            ConfigError: `data` is set, but the run used a data set by name.
            UserError: as `read_config`.
        """
        config = self.read_config()
        update: dict[str, Any] = {"split": str(self.split)}
        if not initial:
            update |= {"pretrained": False, "weights": None}
        if config.settings.pseudo_labels is not None:
            update["pseudo_labels"] = str(self.pseudo_labels)
        if data is not None:
            if config.settings.data is None:
                raise ConfigError(
                    f"--data {display_path(data)}: {display_path(self.path)} was trained on the "
                    f"data set {config.settings.dataset}, which has no folder; leave --data out"
                )
            update["data"] = str(data)
        return config.with_settings(**update)


def check_classes(
    classes: Sequence[str], expected: Sequence[str], run: Path, data: str | Path | None
) -> None:
    """Refuse data whose classes are not those of a run, in any order.

    Args:
        classes: of the data.
        expected: classes of the run.
        run: its folder.
        data: path to the data; None for a data set by name.

    Raises:
        DataError: lists both.
    """
    if set(classes) != set(expected):
        name = "its data" if data is None else display_path(Path(data))
        raise DataError(
            f"{display_path(run)} was trained on the classes {summarize(expected)}; {name} has "
            f"{summarize(classes)}; the names must be the same"
        )


def require_completed(folder: RunFolder, status: Status) -> None:
    """Refuse a run without final results.

    Raises:
        ModelError: names its status and how to resume it.
    """
    if status != "completed":
        name = display_path(folder.path)
        raise ModelError(f"{name}: the run is {status}; resume it with `ssl-toolkit resume {name}`")


class Output:
    """The output folder of a new run, locked until the block ends.

    Args:
        settings: of the run.
        overwrite: replace a run in the folder.
        restart: replace a run that ended before its first checkpoint.

    Raises:
        ModelError: the folder exists (and may not be replaced), is in use, or can't be created.
    """

    def __init__(self, settings: Settings, *, overwrite: bool, restart: bool = False) -> None:
        self._lock: contextlib.ExitStack | None = None
        path = Path(settings.output or "runs")
        name = f"--output {display_path(path)}"
        exists = settings.output is not None and os.path.lexists(path)
        if exists:
            if not path.is_dir():
                raise ModelError(f"{name}: a file has this name; choose another one")
            bare = _is_bare_start(path)
            if not overwrite and not (restart and bare):
                raise ModelError(_exists(path))
            if not RunFolder(path).summary.exists() and not bare:
                raise ModelError(f"{name}: not the folder of a run, so it is not overwritten")
        check_writable(path, name)
        if exists:
            self._lock = hold(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def create(self, settings: Settings) -> RunFolder:
        """Create the folder, or empty it; a default name gets a number if the folder exists.

        Args:
            settings: resolved.

        Raises:
            ModelError: another run has created it in the meantime, or it can't be created.
        """
        path = Path(settings.output or "runs")
        try:
            if settings.output is None:
                path = _numbered(path, default_name(settings))
            elif self._lock is not None:
                _empty(path)
                return RunFolder(path)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir()
        except FileExistsError as error:
            raise ModelError(_exists(path)) from error
        except OSError as error:
            raise ModelError(f"--output {path}: {error.strerror or error}") from error
        self._lock = hold(path)
        return RunFolder(path)


def default_name(settings: Settings) -> str:
    """Return ``<algo>-<dataset>-s<seed>``, from resolved settings."""
    if settings.data:
        path = Path(settings.data).resolve()
        data = path.stem if path.is_file() else path.name
    else:
        data = (settings.dataset or "").rpartition(":")[2]
    return f"{bare(settings.algo)}-{data or 'data'}-s{settings.seed}"


def _exists(path: Path) -> str:
    return (
        f"--output {display_path(path)}: the folder exists; choose another name, resume with "
        f"`ssl-toolkit resume {display_path(path)}`, or replace it with --overwrite"
    )


def _numbered(parent: Path, name: str) -> Path:
    parent.mkdir(exist_ok=True)
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError


def _is_bare_start(path: Path) -> bool:
    """Return True if a folder contains nothing but files of a run, and no summary."""
    folder = RunFolder(path)
    if folder.summary.exists():
        return False
    names = {LOCK, folder.last.parent.name, *(file.name for file in folder.files())}
    return all(entry.name in names or ".partial" in entry.name for entry in path.iterdir())


def _empty(path: Path) -> None:
    """Remove a run except for its lock, starting with the summary, which makes it a run."""
    RunFolder(path).summary.unlink(missing_ok=True)
    clear(path)
