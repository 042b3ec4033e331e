"""Whether the folder of a run is whole: everything there, and its parts agree."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import fingerprint_of
from ssl_toolkit.data.splits.split_file import read_hash
from ssl_toolkit.engine.checkpoints import kept_checkpoints, load_checkpoint, verify_checksum
from ssl_toolkit.engine.metrics import scores
from ssl_toolkit.errors import DataError, ModelError, ToolkitError
from ssl_toolkit.files import at_home
from ssl_toolkit.models.export import load_exported
from ssl_toolkit.runs.data_check import check_data, find_data
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.metrics_log import metric_rows
from ssl_toolkit.runs.predictions import read_arrays
from ssl_toolkit.runs.summary import RunSummary, Scores
from ssl_toolkit.text import display_path


@dataclass
class RunCheck:
    """What `check_run` found."""

    status: str
    """Of the run; ``damaged`` if its summary can't be read."""
    faults: list[str] = field(default_factory=list)
    """One line each, none for a run that is whole."""
    checked: list[str] = field(default_factory=list)
    """The files that were looked at."""
    data: str = ""
    """Why the data was not compared with the run's; empty where it was."""


def check_run(run: str | os.PathLike[str]) -> RunCheck:
    """Check that the folder of a run is complete and consistent; nothing is written.

    A run that is finished has everything, its metrics end at its last step, and its predictions
    give the numbers of its summary. Another one has what is there before its first step, and is
    one that can be resumed. Where the data is at hand, it is what the run was made with.

    Args:
        run: the folder.

    Raises:
        ModelError: it is not the folder of a run.
    """
    folder = RunFolder(at_home(run))
    try:
        summary = folder.read_summary()
    except ModelError as error:
        if not folder.summary.exists():
            raise
        return RunCheck("damaged", [*error.messages], [folder.summary.name])
    return _Checking(folder, summary).all()


def refuse_contradictions(paths: Iterable[Path]) -> None:
    """Refuse finished runs whose files contradict each other, before their results are read.

    Compared are configuration, split and predictions with the record and the summary, of those
    that are there; `check_run` looks at more.

    Raises:
        ModelError: one line for each such run.
    """
    messages = []
    for path in paths:
        folder = RunFolder(path)
        if faults := _Checking(folder, folder.read_summary()).contradictions():
            message = "; ".join(faults)
            messages.append(
                f"{display_path(path)} contradicts itself: {message}; see `ssl-toolkit check-run "
                f"{display_path(path)}`, and train it again or leave it out"
            )
    if messages:
        raise ModelError(messages)


_Part = tuple[Path, bool, Callable[[], None]]
"""A file, whether it must be there, and what looks at it."""


class _Checking:
    def __init__(self, folder: RunFolder, summary: RunSummary) -> None:
        self._folder = folder
        self._summary = summary
        self._done = summary.status == "completed"
        self._found = RunCheck(summary.status)

    def all(self) -> RunCheck:
        f = self._folder
        parts: list[_Part] = [
            (f.summary, True, lambda: None),
            (f.config, True, self._config),
            (f.record, True, self._record),
            (f.split, True, self._split),
            (f.log, True, lambda: None),
            (f.metrics, self._done, self._metrics),
            (f.last, self._done, self._checkpoints),
            (f.best, self._done and self._summary.best_step is not None, self._best),
            (f.predictions, self._done, self._predictions),
            (f.model / "model.safetensors", self._done, self._model),
            (f.model / "config.json", self._done, lambda: None),
            (f.card, self._done, lambda: None),
            (f.table, self._done, lambda: None),
        ]
        self._look(parts)
        if not self._found.faults:
            self._data()
        return self._found

    def contradictions(self) -> list[str]:
        """The faults between the files that results are read from."""
        f = self._folder
        self._look(
            [
                (f.config, False, self._summary_of_config),
                (f.record, False, self._record),
                (f.split, False, self._split),
                (f.predictions, False, self._predictions),
            ]
        )
        return self._found.faults

    def _look(self, parts: list[_Part]) -> None:
        for path, wanted, look in parts:
            name = path.relative_to(self._folder.path).as_posix()
            if not path.exists():
                if wanted:
                    self._fault(f"{name}: missing")
                continue
            self._found.checked.append(name)
            try:
                look()
            except (OSError, LookupError, TypeError, ValueError, zipfile.BadZipFile) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._fault(f"{name}: damaged ({reason[:200]})")
            except ToolkitError as error:
                self._found.faults += error.messages

    def _data(self) -> None:
        """The data, where it is at hand."""
        data = self._folder.read_config().settings.data
        try:
            table = find_data(self._folder)
        except ToolkitError as error:
            if isinstance(error, DataError) and data is not None and Path(data).exists():
                self._found.faults += error.messages
            else:
                self._found.data = error.messages[0]
            return
        try:
            check_data(self._folder, table)
        except ToolkitError as error:
            self._found.faults += error.messages

    def _fault(self, text: str) -> None:
        self._found.faults.append(text)

    def _equal(self, name: str, found: Any, wanted: Any, other: str) -> None:
        if found != wanted:
            self._fault(f"{name} is {found!r}, in {other} {wanted!r}")

    def _config(self) -> None:
        self._folder.read_config()  # is one, of plugins that are there
        self._summary_of_config()

    def _summary_of_config(self) -> None:
        tree = yaml.read_dumped(self._folder.config)
        wanted = {"fingerprint": fingerprint_of(tree)}
        keys = ("seed", "profile", "backbone", *(("steps",) if self._done else ()))
        if self._done and self._summary.fitted:
            tree = {**tree, "steps": 1}
        for key, value in (wanted | {key: tree[key] for key in keys}).items():
            found = getattr(self._summary, key)
            self._equal(f"summary.json: {key}", found, value, "config.yaml")

    def _record(self) -> None:
        record = self._folder.read_record()
        own = fingerprint_of(yaml.read_dumped(self._folder.config))
        self._equal("record.json: fingerprint", record.fingerprint, own, "config.yaml")

    def _split(self) -> None:
        record = self._folder.read_record()
        own = read_hash(self._folder.split)
        self._equal("record.json: split", record.split, own, "split.json")

    def _metrics(self) -> None:
        text = self._folder.metrics.read_text(encoding="utf-8")
        steps = [0, *(row["step"] for row in metric_rows(self._folder.metrics))]
        for number, (before, step) in enumerate(pairwise(steps), 1):
            if step <= before:
                self._fault(f"metrics.jsonl, line {number}: step {step} after step {before}")
        # A kill may cut the last row of an unfinished run, before its newline; resume drops it.
        expected = len(text.splitlines()) if self._done else text.count("\n")
        if len(steps) <= expected:
            self._fault(f"metrics.jsonl, line {len(steps)}: damaged: not a row of metrics")
        elif self._done:
            done = self._summary.steps
            self._equal("metrics.jsonl: its last step", steps[-1], done, "summary.json")

    def _checkpoints(self) -> None:
        for path in kept_checkpoints(self._folder.last):
            state = self._checkpoint(path)
            if path == self._folder.last and state is not None and self._done:
                steps = self._summary.steps
                self._equal(f"{path.name}: step", state["step"], steps, "summary.json")

    def _best(self) -> None:
        state = self._checkpoint(self._folder.best)
        if state is not None and self._done:
            best = self._summary.best_step
            self._equal("best.pt: step", state["step"], best, "summary.json")

    def _checkpoint(self, path: Path) -> dict[str, Any] | None:
        if verify_checksum(path) is None:
            self._fault(f"checkpoints/{path.name}: carries no checksum (cut, or of an old version)")
        try:
            state = load_checkpoint(path)
        except ToolkitError as error:
            self._fault(str(error))
            return None
        classes = list(self._summary.classes)
        self._equal(f"{path.name}: classes", state["classes"], classes, "summary.json")
        return state

    def _predictions(self) -> None:
        classes = list(self._summary.classes)
        arrays = read_arrays(self._folder.predictions)
        own = arrays["classes"].tolist()
        self._equal("predictions.npz: classes", own, classes, "summary.json")
        for part in ("validation", "test"):
            probs, labels = arrays[f"{part}_probabilities"], arrays[f"{part}_labels"]
            found = scores(probs, labels, classes) if len(labels) else None
            stored: Scores | None = getattr(self._summary, part)
            reported = None if stored is None else stored.model_dump()
            if reported is None and not self._done:  # killed before its summary was written
                continue
            if (found is None) != (reported is None):
                self._fault(f"predictions.npz: its {part} scores are not those of summary.json")
            elif found is not None and reported is not None and (names := _unlike(found, reported)):
                self._fault(
                    f"predictions.npz: its {part} scores are not those of summary.json "
                    f"({', '.join(names)})"
                )

    def _model(self) -> None:
        _, config = load_exported(self._folder.model)
        classes = list(self._summary.classes)
        self._equal("model/config.json: classes", config["classes"], classes, "summary.json")


def _unlike(found: Mapping[str, Any], reported: Mapping[str, Any]) -> list[str]:
    """The names of scores that both have and that are not the same.

    Another processor or numpy may round the last digits otherwise, or draw another interval, which
    follows from the accuracy.
    """
    common = [key for key in found if key in reported and key != "interval"]
    return [key for key in common if not _alike(found[key], reported[key])]


def _alike(found: Any, reported: Any) -> bool:
    if isinstance(found, Mapping) and isinstance(reported, Mapping):
        return found.keys() == reported.keys() and all(_alike(found[k], reported[k]) for k in found)
    if isinstance(found, int | float) and isinstance(reported, int | float):
        return math.isclose(found, reported, rel_tol=1e-6, abs_tol=1e-6)
    return bool(found == reported)
