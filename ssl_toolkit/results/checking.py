"""Whether the folder of a run is whole: everything there, and its parts agree."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.data.split_file import read_hash
from ssl_toolkit.engine.checkpoints import kept_checkpoints, load_checkpoint, verify_checksum
from ssl_toolkit.engine.metrics import scores
from ssl_toolkit.errors import ToolkitError
from ssl_toolkit.models.export import load_exported
from ssl_toolkit.results.folder import RunFolder

STATUSES = ("running", "completed", "interrupted", "failed")


@dataclass
class Check:
    """What `check_run` found."""

    status: str
    """Of the run."""
    faults: list[str] = field(default_factory=list)
    """One line each, none for a run that is whole."""
    checked: list[str] = field(default_factory=list)
    """The files that were looked at."""


def check_run(path: Path) -> Check:
    """Look through the folder of a run; writes nothing and needs no data.

    A run that is finished has everything, its metrics end at its last step, and its predictions
    give the very numbers of its summary. Another one has what is there before its first step,
    and is one that can be gone on with.

    Args:
        path: the folder.

    Raises:
        ModelError: it is not the folder of a run.
    """
    folder = RunFolder(path)
    summary = folder.read_summary()
    return _Checking(folder, summary).all()


class _Checking:
    def __init__(self, folder: RunFolder, summary: dict[str, Any]) -> None:
        self._folder = folder
        self._summary = summary
        self._done = summary["status"] == "completed"
        self._found = Check(str(summary["status"]))

    def all(self) -> Check:
        f = self._folder
        if self._found.status not in STATUSES:
            self._fault(f"summary.json: the status {self._found.status!r} is unknown")
        parts: list[tuple[Path, bool, Callable[[], None]]] = [
            (f.summary, True, self._summary_file),
            (f.config, True, self._config),
            (f.record, True, self._record),
            (f.split, True, self._split),
            (f.log, True, lambda: None),
            (f.metrics, self._done, self._metrics),
            (f.last, self._done, self._checkpoints),
            (f.best, self._done and self._summary.get("best_step") is not None, self._best),
            (f.predictions, self._done, self._predictions),
            (f.model / "model.safetensors", self._done, self._model),
            (f.model / "config.json", self._done, lambda: None),
            (f.card, self._done, lambda: None),
            (f.table, self._done, lambda: None),
        ]
        for path, wanted, look in parts:
            name = path.relative_to(f.path).as_posix()
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
        return self._found

    def _fault(self, text: str) -> None:
        self._found.faults.append(text)

    def _equal(self, name: str, found: Any, wanted: Any, other: str) -> None:
        if found != wanted:
            self._fault(f"{name} is {found!r}, in {other} {wanted!r}")

    def _summary_file(self) -> None:
        _strict(self._folder.summary.read_text(encoding="utf-8"))

    def _config(self) -> None:
        config: RunConfig = self._folder.read_config()
        own = config.fingerprint()
        self._equal("summary.json: fingerprint", self._summary["fingerprint"], own, "config.yaml")
        for key in ("seed", "profile", "backbone"):
            wanted = getattr(config.settings, key)
            self._equal(f"summary.json: {key}", self._summary[key], wanted, "config.yaml")
        if self._done:
            steps = config.settings.steps
            self._equal("summary.json: steps", self._summary["steps"], steps, "config.yaml")

    def _record(self) -> None:
        record = _strict(self._folder.record.read_text(encoding="utf-8"))
        own = self._folder.read_config().fingerprint()
        self._equal("record.json: fingerprint", record["fingerprint"], own, "config.yaml")

    def _split(self) -> None:
        record = self._folder.read_record()
        own = read_hash(self._folder.split)
        self._equal("record.json: split", record["split"], own, "split.json")

    def _metrics(self) -> None:
        before, whole = 0, True
        lines = self._folder.metrics.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, 1):
            try:
                step = _strict(line)["step"]
            except (ValueError, TypeError, LookupError):
                # A kill may cut the last row of a run that is not finished; resume drops it.
                if self._done or number < len(lines):
                    self._fault(f"metrics.jsonl, line {number}: no row of strict JSON")
                whole = False
                break
            if not isinstance(step, int) or step <= before:
                self._fault(f"metrics.jsonl, line {number}: step {step} after step {before}")
            before = step
        if self._done and whole:
            steps = self._summary["steps"]
            self._equal("metrics.jsonl: its last step", before, steps, "summary.json")

    def _checkpoints(self) -> None:
        for path in kept_checkpoints(self._folder.last):
            state = self._checkpoint(path)
            if path == self._folder.last and state is not None and self._done:
                steps = self._summary["steps"]
                self._equal(f"{path.name}: step", state["step"], steps, "summary.json")

    def _best(self) -> None:
        state = self._checkpoint(self._folder.best)
        if state is not None and self._done:
            best = self._summary["best_step"]
            self._equal("best.pt: step", state["step"], best, "summary.json")

    def _checkpoint(self, path: Path) -> dict[str, Any] | None:
        if verify_checksum(path) is None:
            self._fault(f"checkpoints/{path.name}: carries no checksum (cut, or of an old version)")
        try:
            state = load_checkpoint(path)
        except ToolkitError as error:
            self._fault(str(error))
            return None
        classes = self._summary["classes"]
        self._equal(f"{path.name}: classes", state["classes"], classes, "summary.json")
        return state

    def _predictions(self) -> None:
        classes = self._summary["classes"]
        with (
            self._folder.predictions.open("rb") as file,  # np.load leaves a damaged one open
            np.load(file, allow_pickle=False) as arrays,
        ):
            own = arrays["classes"].tolist()
            self._equal("predictions.npz: classes", own, classes, "summary.json")
            for part in ("validation", "test"):
                probs, labels = arrays[f"{part}_probabilities"], arrays[f"{part}_labels"]
                found = scores(probs, labels, classes) if len(labels) else None
                told = self._summary[part]
                # Through JSON, as the summary went: the very same numbers then.
                if json.loads(json.dumps(found)) != told:
                    names = [k for k in told or {} if (found or {}).get(k) != told[k]]
                    self._fault(
                        f"predictions.npz: its {part} scores are not those of summary.json "
                        f"({', '.join(names) or 'one has none'})"
                    )

    def _model(self) -> None:
        _, config = load_exported(self._folder.model)
        classes = self._summary["classes"]
        self._equal("model/config.json: classes", config["classes"], classes, "summary.json")


def _strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
