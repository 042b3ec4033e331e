"""Check that the folder of a run is complete and consistent, and its data unchanged."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import fingerprint_of
from ssl_toolkit.data.load import chosen_labels, load_table
from ssl_toolkit.data.readers.image_files import files_of
from ssl_toolkit.data.splits.contents import compare_rows
from ssl_toolkit.data.splits.draw import Split
from ssl_toolkit.data.splits.pseudo_labels import pseudo_labeled
from ssl_toolkit.data.splits.split_file import SplitFile, data_changed, load_split
from ssl_toolkit.engine.checkpoints import kept_checkpoints, load_checkpoint, verify_checksum
from ssl_toolkit.errors import DataError, ModelError, ToolkitError
from ssl_toolkit.files import at_home
from ssl_toolkit.interfaces import ImageTable
from ssl_toolkit.models.export import load_exported
from ssl_toolkit.runs.folder import RunFolder, check_classes
from ssl_toolkit.runs.metrics_log import metric_rows
from ssl_toolkit.runs.multilabel import MultiLabelScores, multilabel_scores
from ssl_toolkit.runs.predictions import read_arrays
from ssl_toolkit.runs.scoring import scores
from ssl_toolkit.runs.summary import RunSummary, Scores
from ssl_toolkit.text import display_path

NEW_COMPARISON = "restore them, or compare into another folder (--output)"


@dataclass
class RunCheck:
    """The result of `check_run`."""

    status: str
    """Of the run; ``damaged`` if its summary can't be read."""
    faults: list[str] = field(default_factory=list)
    """One line each; empty for a complete and consistent run."""
    checked: list[str] = field(default_factory=list)
    """Names of the files that were checked."""
    data: str = ""
    """Reason why the data was not checked; empty if it was checked."""


def check_run(run: str | os.PathLike[str]) -> RunCheck:
    """Check that the folder of a run is complete and consistent; nothing is written.

    A finished run has every file, its metrics end at its last step, and its predictions give the
    scores of its summary. Another one has the files of its start, and can be resumed. If the data
    is found, it must be unchanged.

    Args:
        run: The folder.

    Raises:
        ModelError: It is not the folder of a run.
    """
    folder = RunFolder(at_home(run))
    try:
        summary = folder.read_summary()
    except ModelError as error:
        if not folder.summary.exists():
            raise
        return RunCheck("damaged", [*error.messages], [folder.summary.name])
    return _Checker(folder, summary).all()


def refuse_contradictions(paths: Iterable[Path]) -> None:
    """Refuse finished runs whose files contradict each other, before their results are read.

    Configuration, split, metrics and predictions are compared with the record and the summary, as
    far as they exist; `check_run` checks more.

    Raises:
        ModelError: One line for each such run.
    """
    messages = []
    for path in paths:
        folder = RunFolder(path)
        if faults := _Checker(folder, folder.read_summary()).contradictions():
            message = "; ".join(faults)
            messages.append(
                f"{display_path(path)} contradicts itself: {message}; see `ssl-toolkit check-run "
                f"{display_path(path)}`, and train it again or leave it out"
            )
    if messages:
        raise ModelError(messages)


_Part = tuple[Path, bool, Callable[[], None]]
"""A file, True if it is required, and its check."""


class _Checker:
    def __init__(self, folder: RunFolder, summary: RunSummary) -> None:
        self._folder = folder
        self._summary = summary
        self._completed = summary.status == "completed"
        self._result = RunCheck(summary.status)

    def all(self) -> RunCheck:
        f = self._folder
        parts: list[_Part] = [
            (f.summary, True, lambda: None),
            (f.config, True, self._config),
            (f.record, True, self._record),
            (f.split, True, self._split),
            (f.log, True, lambda: None),
            (f.metrics, self._completed, self._metrics),
            (f.last, self._completed, self._checkpoints),
            (f.best, self._completed and self._summary.best_step is not None, self._best),
            (f.predictions, self._completed, self._predictions),
            (f.model / "model.safetensors", self._completed, self._model),
            (f.model / "config.json", self._completed, lambda: None),
            (f.card, self._completed, lambda: None),
            (f.table, self._completed, lambda: None),
        ]
        self._check_files(parts)
        if not self._result.faults:
            self._data()
        return self._result

    def contradictions(self) -> list[str]:
        """Return the contradictions between the files that results are read from."""
        f = self._folder
        self._check_files(
            [
                (f.config, False, self._summary_of_config),
                (f.record, False, self._record),
                (f.split, False, self._split),
                (f.metrics, False, self._metrics),
                (f.predictions, False, self._predictions),
            ]
        )
        return self._result.faults

    def _check_files(self, parts: list[_Part]) -> None:
        for path, required, check in parts:
            name = path.relative_to(self._folder.path).as_posix()
            if not path.exists():
                if required:
                    self._fault(f"{name}: missing")
                continue
            self._result.checked.append(name)
            try:
                check()
            except (OSError, LookupError, TypeError, ValueError, zipfile.BadZipFile) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._fault(f"{name}: damaged ({reason[:200]})")
            except ToolkitError as error:
                for message in error.messages:
                    self._fault(message)

    def _data(self) -> None:
        """Check the data, if it is found."""
        data, table = self._folder.read_config().settings.data, None
        try:
            table = find_data(self._folder)
            check_data(self._folder, table)
        except ToolkitError as error:
            exists = isinstance(error, DataError) and data is not None and Path(data).exists()
            if exists or table is not None:
                self._result.faults += error.messages
            else:
                self._result.data = error.messages[0]

    def _fault(self, text: str) -> None:
        if text not in self._result.faults:  # several checks read the record and the split
            self._result.faults.append(text)

    def _equal(self, name: str, value: Any, expected: Any, other: str) -> None:
        if value != expected:
            self._fault(f"{name} is {value!r}, in {other} {expected!r}")

    def _config(self) -> None:
        config = self._folder.read_config()  # refuses one with missing plugins
        if config.settings.pseudo_labels and not self._folder.pseudo_labels.exists():
            self._fault(f"{self._folder.pseudo_labels.name}: missing")
        self._summary_of_config()

    def _summary_of_config(self) -> None:
        tree = yaml.read_dumped(self._folder.config)
        expected = {key: tree[key] for key in ("seed", "profile", "backbone")}
        expected["fingerprint"] = fingerprint_of(tree)
        if self._completed:
            expected["steps"] = 1 if self._summary.fitted else tree["steps"]
        for key, value in expected.items():
            self._equal(f"summary.json: {key}", getattr(self._summary, key), value, "config.yaml")

    def _record(self) -> None:
        fingerprint = fingerprint_of(yaml.read_dumped(self._folder.config))
        record = self._folder.read_record()
        self._equal("record.json: fingerprint", record.fingerprint, fingerprint, "config.yaml")

    def _split(self) -> None:
        stored = SplitFile.read(self._folder.split).hash
        self._equal("record.json: split", self._folder.read_record().split, stored, "split.json")

    def _metrics(self) -> None:
        text = self._folder.metrics.read_text(encoding="utf-8")
        steps = [0, *(row["step"] for row in metric_rows(self._folder.metrics))]
        for number, (before, step) in enumerate(pairwise(steps), 1):
            if step <= before:
                self._fault(f"metrics.jsonl, line {number}: step {step} after step {before}")
        # A kill may truncate the last row of an unfinished run before its newline.
        expected = len(text.splitlines()) if self._completed else text.count("\n")
        if len(steps) <= expected:
            self._fault(f"metrics.jsonl, line {len(steps)}: damaged: not a row of metrics")
        elif self._completed:
            done = self._summary.steps
            self._equal("metrics.jsonl: its last step", steps[-1], done, "summary.json")

    def _checkpoints(self) -> None:
        for path in kept_checkpoints(self._folder.last):
            self._checkpoint(path, self._summary.steps if path == self._folder.last else None)

    def _best(self) -> None:
        self._checkpoint(self._folder.best, self._summary.best_step)

    def _checkpoint(self, path: Path, step: int | None) -> None:
        if verify_checksum(path) is None:
            name = f"checkpoints/{path.name}"
            self._fault(f"{name}: has no checksum (truncated, or of an old version)")
        try:
            state = load_checkpoint(path)
        except ToolkitError as error:
            self._fault(str(error))
            return
        self._same_classes(path.name, state["classes"])
        if self._completed and step is not None:
            self._equal(f"{path.name}: step", state["step"], step, "summary.json")

    def _predictions(self) -> None:
        arrays = read_arrays(self._folder.predictions)
        self._same_classes("predictions.npz", arrays["classes"].tolist())
        for part in ("validation", "test"):
            probs, labels = arrays[f"{part}_probabilities"], arrays[f"{part}_labels"]
            stored: Scores | MultiLabelScores | None = getattr(self._summary, part)
            if (several := self._summary.multilabel) is not None:
                stored = getattr(several, part)
            if stored is None and not self._completed:  # killed before its summary was written
                continue
            computed = {}
            if isinstance(stored, MultiLabelScores):
                thresholds = [score.threshold for score in stored.per_class.values()]
                computed = multilabel_scores(probs, labels, self._summary.classes, thresholds)
            elif len(labels):
                computed = scores(probs, labels, self._summary.classes)
            names = _different(computed, {} if stored is None else stored.model_dump())
            if names:
                self._fault(
                    f"predictions.npz: its {part} scores are not those of summary.json "
                    f"({', '.join(names)})"
                )

    def _model(self) -> None:
        self._same_classes("model/config.json", load_exported(self._folder.model)[1]["classes"])

    def _same_classes(self, name: str, classes: list[str]) -> None:
        self._equal(f"{name}: classes", classes, list(self._summary.classes), "summary.json")


def _different(computed: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return the names of scores that differ.

    The intervals, which follow from the accuracies, are not compared. On another processor or
    version of numpy, they may differ, as may the last digits. An older version may have stored
    fewer scores.
    """
    if not (computed and stored):
        return [*computed, *stored]
    names = [key for key in computed if key in stored and not key.endswith("interval")]
    return [key for key in names if not _close(computed[key], stored[key])]


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_close(one[k], other[k]) for k in one)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    return bool(one == other)


def find_data(folder: RunFolder, data: Path | None = None) -> ImageTable:
    """Return the data of a run, without decoding or downloading images.

    Args:
        folder: Of the run.
        data: Path to its images, if they were moved.

    Raises:
        UserError: It is not found or can't be read.
    """
    settings = folder.reopen(data).settings.model_copy(update={"download": False})
    table, _ = chosen_labels(load_table(settings, lazily=True), settings)
    if settings.pseudo_labels is not None:
        table, _ = pseudo_labeled(table, Path(settings.pseudo_labels))
    return table


def check_data(folder: RunFolder, table: ImageTable, data: Path | None = None) -> None:
    """Refuse data that a run was not trained with; no image is decoded.

    Digests come from the cache of the run's images, if it exists; else the files are read.

    Args:
        folder: Of the run.
        table: Of `find_data`.
        data: Path to it, if it was moved.

    Raises:
        DataError: Other classes, missing images, or other images.
    """
    settings = folder.read_config().settings
    classes = folder.read_summary().classes
    check_classes(table.classes, classes, folder.path, data or settings.data)
    stored = load_split(folder.split, table)
    if (files := files_of(table)) is not None:
        if settings.stream_buffer is not None:
            parts = [stored.split.labeled, stored.split.validation, stored.split.test]
            files.cache_only(np.concatenate(parts))
        files.open_existing(settings.image_size)
    stored.check(table)


def check_same_data(
    folder: RunFolder, table: ImageTable, split: Split | None, hashes: set[str]
) -> None:
    """Refuse to continue a comparison with other data than a run in it was trained with.

    Args:
        folder: Of the run.
        table: The data, read for the comparison.
        split: That of a new run with these settings and this seed; None to skip the comparison.
        hashes: Of splits that were checked against this data; that of the run is added.

    Raises:
        DataError: One line with how many images of which part differ.
        ModelError: The record of the run is missing or damaged.
    """
    split_hash = folder.read_record().split
    if split_hash in hashes:
        return
    try:
        stored = load_split(folder.split, table)
    except DataError as error:
        raise DataError([f"{message}; {NEW_COMPARISON}" for message in error.messages]) from error
    stored.check(table, NEW_COMPARISON)
    if split is not None and (changes := compare_rows(stored.split, split)).description:
        raise data_changed(folder.split, changes, NEW_COMPARISON)
    hashes.add(split_hash)


def check_same_inputs(folder: RunFolder, inputs: Mapping[str, str]) -> None:
    """Refuse to continue a comparison if an input of a run in it has another content now.

    Args:
        folder: of the run.
        inputs: hashes of the inputs now, as of `RunRecord.inputs`.

    Raises:
        ModelError: one line that names the inputs; or the record is missing or damaged.
    """
    before = folder.read_record().inputs
    if changed := [name for name, value in before.items() if inputs.get(name) != value]:
        raise ModelError(
            f"{display_path(folder.path)}: inputs changed since it started: {', '.join(changed)}; "
            f"{NEW_COMPARISON}"
        )
