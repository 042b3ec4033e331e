"""The record of a run, ``record.json``: its environment and its initial state."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import json
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import importlib_metadata
import numpy as np
import torch
from pydantic import Field
from torch import nn

from ssl_toolkit import registry
from ssl_toolkit.config.images import ImageSize
from ssl_toolkit.config.loading import ResolvedConfig
from ssl_toolkit.config.plugin_names import parts_of
from ssl_toolkit.config.settings import FREE_ON_RESUME, MOVED_ON_RESUME, Settings, flatten
from ssl_toolkit.data.splits.contents import table_hash
from ssl_toolkit.documents import Document, Part
from ssl_toolkit.engine.devices import describe
from ssl_toolkit.engine.experiment import Experiment
from ssl_toolkit.interfaces.datasets import STRANGER
from ssl_toolkit.models.timm_sources import has_source


class Change(Part):
    """A value that changed when the run was resumed."""

    key: str
    before: Any
    after: Any
    after_step: int


class Candidate(Part):
    """An algorithm, and the settings that it overrides."""

    name: str
    algorithm: str
    overrides: dict[str, Any] = Field(default_factory=dict)

    @property
    def trains_backbone(self) -> bool:
        """True if it trains the backbone."""
        return bool(self.overrides)


class AutoTrial(Candidate):
    """The score of a candidate of ``algo: auto``."""

    accuracy: float
    images: str
    """Kind of the test images."""
    count: int
    """Number of test images."""
    seconds: float


class AutoChoice(Candidate):
    """The candidate that ``algo: auto`` chose."""

    reason: str
    trials: tuple[AutoTrial, ...] = ()
    folds: int = 0
    skipped: tuple[str, ...] = ()
    """Candidates that were not tried for lack of time."""


class MinutesChoice(Part):
    """The choices of ``minutes``."""

    minutes: float
    image_size: ImageSize
    steps: int | None = None
    """None if a head is fitted without steps."""
    feature_views: int | None = None
    """None if steps don't draw from features."""
    image_seconds: float | None
    """Measured time of the features of an image."""
    step_seconds: float | None = None
    """Measured time of a step."""
    expected_seconds: float
    """Estimated time of the rest of the run."""
    enough: bool
    """True if no smaller image size is needed to train long enough."""


class RunRecord(Document):
    """The environment and the initial state of a run: its ``record.json``."""

    versions: dict[str, str]
    """Of Python and of the packages that results depend on."""
    platform: str
    device: str
    precision: str
    torch_threads: int
    plugins: dict[str, str]
    """Distribution of each plugin."""
    uses_hidden_labels: bool
    """True if the algorithm gets the hidden labels: an upper bound."""
    run_defaults: dict[str, Any] = Field(default_factory=dict)
    """Run defaults of the algorithm that the run has, by dotted key."""
    fingerprint: str
    """Hash of the shared configuration."""
    configuration: str = ""
    """Hash of the settings that can't be changed on resume, with the options of the algorithm;
    empty in an older record."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Hashes of what the runs of all seeds share, by name; none in an older record."""
    split: str
    """Hash of the split."""
    initial_weights: str
    """Hash of the weights before the first step."""
    draws: dict[str, str]
    """Hashes of the first orders of images and draws of views, by name."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    auto: AutoChoice | None = None
    minutes: MinutesChoice | None = None
    changes: tuple[Change, ...] = ()
    """Changes on resume."""


PACKAGES = (
    *("ssl-toolkit", "torch", "timm", "kornia", "numpy", "scipy", "scikit-learn"),
    *("pillow", "simplejpeg"),
)
"""The dependencies that compute: they decode, augment, train, fit and score."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on."""
    numbers = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            numbers[name] = importlib_metadata.version(name)
        except importlib_metadata.PackageNotFoundError:
            continue
    return numbers | {"torch": torch.__version__}  # with its build, such as +cu130


def configuration_hash(config: ResolvedConfig) -> str:
    """Return a hash of all settings and options, except for what may be changed on resume."""
    free = FREE_ON_RESUME | MOVED_ON_RESUME
    fixed = {key: value for key, value in flatten(config.tree()) if key not in free}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def weights_hash(module: nn.Module) -> str:
    """Return a hash of the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(name.encode() + plain.numpy().tobytes())
    return digest.hexdigest()[:16]


def hashes_of_inputs(experiment: Experiment) -> dict[str, str]:
    """Return hashes of the images of the classes, the strangers, and the file of weights, by name.

    They don't depend on the seed, so that runs of different seeds can be compared.
    """
    table, settings = experiment.table, experiment.config.settings
    strangers = table.labels == STRANGER
    parts = {"data": ~strangers, "strangers": strangers}
    hashes = {n: table_hash(table, np.flatnonzero(of)) for n, of in parts.items() if of.any()}
    weights = settings.weights
    if weights is None and has_source(settings.backbone):  # a folder, whose files may be replaced
        weights = getattr(experiment.trainer.classifier.backbone, "weights_source", None)
    if weights is None:
        return hashes
    path = Path(weights)
    with (path / "model.safetensors" if path.is_dir() else path).open("rb") as file:
        return hashes | {"weights file": hashlib.file_digest(file, "sha256").hexdigest()}


def distributions(settings: Settings) -> dict[str, str]:
    """Return the distribution of each plugin that computes, by group and name, as text.

    Of others than the built-in ones, a hash of the code follows the version, which an editable
    install keeps when the code changes.
    """
    plugins = [
        *parts_of("algorithms", settings.algo),
        ("augmenters", settings.augment.weak),
        ("backbones", settings.backbone),
        ("datasets", settings.dataset),
        ("augmenters", settings.augment.strong),
    ]
    result = {}
    for group, name in plugins:
        if name and registry.has(group, name):
            entry = registry.find(group, name)
            source = f"{entry.distribution} {entry.version}".strip()
            result[f"{group}: {entry.name}"] = source + _code(entry)
        elif name:
            result[f"{group}: {name}"] = f"timm {versions().get('timm', '')}".strip()
    return result


def _code(entry: registry.Entry) -> str:
    """Return a hash of the code of a plugin as text; empty for a built-in one.

    It is of all Python files of its package, or of the source of a class that a decorator
    registered, as far as it is known.
    """
    if entry.built_in:
        return ""
    if entry.target is not None:
        source = "\n".join(_sources(entry.target))
        return f" (code {hashlib.sha256(source.encode()).hexdigest()[:8]})" if source else ""
    spec = importlib.util.find_spec(entry.value.partition(":")[0].partition(".")[0])
    if spec is None:
        return ""
    files = [Path(spec.origin)] if spec.origin else []
    for folder in map(Path, spec.submodule_search_locations or ()):
        files += sorted(folder.rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file()))
    return f" (code {digest.hexdigest()[:8]})"


def _sources(plugin: type) -> Iterator[str]:
    """Yield the source of a class and of its bases in the same module."""
    for of in (one for one in plugin.__mro__ if one.__module__ == plugin.__module__):
        try:
            yield inspect.getsource(of)
        except (OSError, TypeError):  # a notebook knows the source of functions only
            for function in filter(inspect.isfunction, vars(of).values()):
                with contextlib.suppress(OSError, TypeError):
                    yield inspect.getsource(function)


def in_versions(distributions: Iterable[str | None]) -> bool:
    """Return True for versions of one distribution, if they are in `RunRecord.versions` too."""
    names = {(text or "").partition(" ")[0] for text in distributions}
    return len(names) == 1 and names <= {*PACKAGES}


def make_record(
    experiment: Experiment, auto: AutoChoice | None, minutes: MinutesChoice | None
) -> RunRecord:
    """Return the record of a run before its first step.

    In a comparison, the hashes of rows with the same seed agree; those of orders and draws are
    compared by name.

    Args:
        experiment: Prepared.
        auto: The choice of ``algo: auto``.
        minutes: The choices of ``minutes``.
    """
    settings = experiment.config.settings
    return RunRecord(
        versions=versions(),
        platform=platform.platform(),
        device=describe(experiment.device),
        precision=experiment.trainer.precision,
        torch_threads=torch.get_num_threads(),
        plugins=distributions(settings),
        uses_hidden_labels=experiment.trainer.algorithm.uses_hidden_labels,
        run_defaults=experiment.config.run_defaults(),
        fingerprint=experiment.config.fingerprint(),
        configuration=configuration_hash(experiment.config),
        inputs=hashes_of_inputs(experiment),
        split=experiment.split_hash,
        initial_weights=weights_hash(experiment.trainer.classifier),
        draws=experiment.trainer.batches.digests(settings.image_size),
        notes=tuple(experiment.notes),
        warnings=tuple(experiment.warnings),
        auto=auto,
        minutes=minutes,
    )
