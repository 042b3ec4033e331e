"""The folder of a run: where each file is, and who may write there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparability import flatten
from ssl_toolkit.config.loading import Layer, ResolvedConfig, RunConfig, filled, validate
from ssl_toolkit.config.roles import FREE_ON_RESUME
from ssl_toolkit.errors import ConfigError, DataError, ModelError
from ssl_toolkit.runs.record import RunRecord
from ssl_toolkit.runs.summary import RunSummary
from ssl_toolkit.text import display_path, summarize

FROM_DATA = "labeled_in_pool"
"""The key that is filled from the data alone: None in a configuration that was not run yet."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def record(self) -> Path:
        """Versions, device, distributions and fingerprint."""
        return self.path / "record.json"

    @property
    def split(self) -> Path:
        """Which image is in which part."""
        return self.path / "split.json"

    @property
    def leaks(self) -> Path:
        """The same images in places where they must not be; only where there are such."""
        return self.path / "leaks.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def table(self) -> Path:
        """The same rows as a table; written when the run ends, however it ends."""
        return self.path / "metrics.csv"

    @property
    def log(self) -> Path:
        """What was printed."""
        return self.path / "log.txt"

    @property
    def summary(self) -> Path:
        """Status and results."""
        return self.path / "summary.json"

    @property
    def predictions(self) -> Path:
        """Test and validation probabilities and labels."""
        return self.path / "predictions.npz"

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoints" / "last.pt"

    @property
    def best(self) -> Path:
        """Weights of the best validation."""
        return self.path / "checkpoints" / "best.pt"

    @property
    def model(self) -> Path:
        """The exported model."""
        return self.path / "model"

    @property
    def card(self) -> Path:
        """The model card."""
        return self.model / "README.md"

    def read_summary(self) -> RunSummary:
        """Read the summary.

        Raises:
            ModelError: the folder is not that of a run, or the file is damaged.
        """
        try:
            return RunSummary.read(self.summary)
        except FileNotFoundError as error:
            raise ModelError(f"{self.path}: not the folder of a run (no summary.json)") from error

    def read_record(self) -> RunRecord:
        """Read the record of the run's start.

        Raises:
            ModelError: it is missing or damaged.
        """
        try:
            return RunRecord.read(self.record)
        except FileNotFoundError as error:
            raise ModelError(f"{display_path(self.record)}: not found") from error

    def read_config(self) -> ResolvedConfig:
        """The configuration of the run's start.

        Raises:
            UserError: the file is missing or damaged, or a plugin that it names isn't there.
        """
        config = validate([Layer(str(self.config), yaml.read(self.config))])
        return filled(config, {}, str(self.config))

    def reopen(self, data: Path | None = None) -> ResolvedConfig:
        """The configuration with the run's own split, and without weights that a checkpoint holds.

        Args:
            data: where the run's images are now; None for where they were.

        Raises:
            ConfigError: `data` is given, but the run used a data set by name.
            UserError: as `read_config`.
        """
        config = self.read_config()
        update: dict[str, Any] = {"split": str(self.split), "pretrained": False, "weights": None}
        if data is not None:
            if config.settings.data is None:
                raise ConfigError(
                    f"--data {display_path(data)}: {display_path(self.path)} was trained on the "
                    "data set "
                    f"{config.settings.dataset}, which has no folder; leave --data out"
                )
            update["data"] = str(data)
        return replace(config, settings=config.settings.model_copy(update=update))


def check_classes(
    classes: Sequence[str], own: Sequence[str], run: Path, data: str | Path | None
) -> None:
    """Refuse data whose classes are not those of a run, in whatever order.

    Raises:
        DataError: names both lists.
    """
    if set(classes) != set(own):
        where = "its data" if data is None else display_path(Path(data))
        raise DataError(
            f"{display_path(run)} was trained on the classes {summarize(own)}; {where} has "
            f"{summarize(classes)}; "
            "the names must be the same"
        )


def check_same(folder: RunFolder, config: RunConfig) -> None:
    """Refuse a folder whose run has another configuration; where it lies is no part of it.

    Args:
        folder: of a run.
        config: resolved.

    Raises:
        ConfigError: names the keys that differ, with both values.
    """
    stored = dict(flatten(folder.read_config().tree()))
    left_out = {*FREE_ON_RESUME, "devices"}  # each start or resume says how many
    given = {key: value for key, value in flatten(config.tree()) if key not in left_out}
    if given[FROM_DATA] is None:
        del given[FROM_DATA]
    messages = [
        f"{key} is {stored.get(key)!r} there, {value!r} here"
        for key, value in given.items()
        if stored.get(key) != value
    ]
    if messages:
        raise ConfigError(
            f"{display_path(folder.path)}: the run there has another configuration: "
            f"{'; '.join(messages)}"
        )
