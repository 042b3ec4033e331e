"""Load stages, runs that start from earlier ones, from files, flags and ``--set``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import (
    Layer,
    RunConfig,
    check_options,
    merge,
    plain_tree,
    read_layers,
    validate,
)
from ssl_toolkit.config.merging import Tree
from ssl_toolkit.config.options import Names, Options, option
from ssl_toolkit.config.plugin_names import section_of
from ssl_toolkit.config.settings import FREE_ON_RESUME, Settings, keys_behind
from ssl_toolkit.errors import ConfigError, PluginError, UserError
from ssl_toolkit.registry import did_you_mean

KEY = "stages"
PREVIOUS = "previous"
"""Source that stands for the stage before."""
SHARED_KEYS = ("seed", "output", *keys_behind("split"))
"""Settings that all stages share, so that no stage trains on the test images of another."""


class StageSettings(Options):
    """Settings of a stage that refer to earlier ones, in addition to those of its run."""

    # fmt: off
    weights_from: str | None = option(None, help="earlier stage that trained the first weights")
    labels_from: Names = option(
        [], help="earlier stages that label the pool, by the mean of their probabilities"
    )
    threshold: float = option(0.95, ge=0, le=1, help="minimum probability of a pseudo label")
    fraction: float = option(1.0, gt=0, le=1, help="largest share of the pool, the most probable")
    rebalance: float | None = option(
        None, ge=0, help="exponent alpha of CReST: keep fewer pseudo labels of frequent classes",
        source="Wei et al., CReST, CVPR 2021, section 3.2",
    )
    # fmt: on

    @property
    def sources(self) -> list[str]:
        """Names of the stages that this one starts from."""
        return [*filter(None, [self.weights_from]), *self.labels_from]


@dataclass(frozen=True)
class Stage:
    """A run, and the earlier stages that it starts from."""

    name: str
    sources: StageSettings
    config: RunConfig


@dataclass(frozen=True)
class StagesConfig:
    """Validated stages, in their order."""

    name: str
    output: str | None
    stages: tuple[Stage, ...]

    def tree(self) -> Tree:
        """Return plain types that restore these stages when they are read from a file."""
        shared = {k: v for k, v in self.stages[0].config.tree().items() if k in SHARED_KEYS}
        stages = {}
        for stage in self.stages:
            run = {k: v for k, v in stage.config.tree().items() if k not in SHARED_KEYS}
            stages[stage.name] = run | stage.sources.model_dump(mode="json")
        return shared | {"output": None, KEY: stages}

    def differences(self, other: StagesConfig) -> list[str]:
        """Return the names of the stages that differ from those of another configuration."""
        mine, theirs = ({s.name: _fixed(s) for s in one.stages} for one in (self, other))
        names = dict.fromkeys([*mine, *theirs])
        return [name for name in names if mine.get(name) != theirs.get(name)]


def has_stages(files: Sequence[Path]) -> bool:
    """Return True if one of some configuration files has stages."""
    return any(KEY in yaml.read(path) for path in files)


def load_stages(
    files: Sequence[Path], flags: Mapping[str, Any] | None = None, sets: Sequence[str] = ()
) -> StagesConfig:
    """Load and validate stages: defaults < files < keys of a stage < flags < ``--set``.

    Args:
        files: YAML files with ``stages``, which maps names to keys of a run and of `StageSettings`.
        flags: Keys of a run; None for flags that are not set.
        sets: Assignments ``key.path=value``.

    Raises:
        UserError: Lists all invalid settings or, without any, all faults of plugins.
    """
    layers = read_layers(files, flags or {}, sets)
    layers, over = layers[: len(files)], layers[len(files) :]
    return _validate(layers, over, files[-1].stem, f"{files[-1]}: {KEY}")


def validate_stages(tree: Mapping[str, Any]) -> StagesConfig:
    """Validate stages that are a tree of keys, as in a file; errors as of `load_stages`."""
    return _validate([Layer("configuration", plain_tree(tree))], [], KEY, KEY)


def _validate(
    layers: Sequence[Layer], over: Sequence[Layer], title: str, origin: str
) -> StagesConfig:
    trees = merge([layer.only({KEY}) for layer in layers])[0].get(KEY)
    layers = [layer.without({KEY}) for layer in layers]
    for layer in over:
        if KEY in layer.tree:
            raise ConfigError(
                f"{layer.origin}: flags and --set apply to all stages; change one in its file"
            )
    if not isinstance(trees, dict) or not all(isinstance(t or {}, dict) for t in trees.values()):
        raise ConfigError(f"{origin}: must be a map of stages, each a map of keys")
    if not trees:
        raise ConfigError(f"{origin}: no stages; give a name and its keys for each")
    trees = {name: tree or {} for name, tree in trees.items()}
    messages = [*_wrong_names(origin, trees)]
    sections = {name: _section([*layers, Layer("", tree), *over]) for name, tree in trees.items()}
    fields = StageSettings.model_fields
    plugins: list[str] = []
    stages: list[Stage] = []
    for name, tree in trees.items():
        where = f"{origin}.{name}"
        messages += [
            f"{where}.{key}: all stages share it; write it outside of the stages"
            for key in SHARED_KEYS
            if key in tree
        ]
        others = {*sections.values()} - {sections[name]}
        stage = Layer(where, tree)
        run, extra = stage.without(fields), stage.only(fields)
        misspelled = _misspelled(run.tree)
        run = run.without(misspelled)
        messages += [f"{where}: {key}: unknown key{hint}" for key, hint in misspelled.items()]
        try:
            sources = check_options(StageSettings, extra.tree, where)
            assert isinstance(sources, StageSettings)
            under, above = ([layer.without(others) for layer in some] for some in (layers, over))
            config = validate([*under, run, *above])
        except UserError as error:
            kind = plugins if isinstance(error, PluginError) else messages
            kind += [message for message in error.messages if message not in kind]
            continue
        earlier = [stage.name for stage in stages]
        sources = _resolved(sources, earlier)
        messages += _wrong_sources(where, sources, earlier, config)
        stages.append(Stage(name, sources, config))
    if messages:
        raise ConfigError(messages)
    if plugins:
        raise PluginError(plugins)
    output = stages[0].config.settings.output
    return StagesConfig(title, output, tuple(stages))


def _misspelled(tree: Tree) -> dict[str, str]:
    """Return the suggestions for keys that resemble those of `StageSettings`."""
    unknown = [key for key in tree if key not in Settings.model_fields]
    hints = {key: did_you_mean(key, StageSettings.model_fields) for key in unknown}
    return {key: hint for key, hint in hints.items() if hint and not isinstance(tree[key], dict)}


def _section(layers: Sequence[Layer]) -> str:
    algos = [layer.tree["algo"] for layer in layers if layer.tree.get("algo")]
    return section_of(str([Settings.model_fields["algo"].default, *algos][-1]))


def _wrong_names(origin: str, names: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        if name == PREVIOUS or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            yield f"{origin}: {name!r} is no name of a stage; use letters, digits, - and _"
    if len({name.lower() for name in names}) < len(names):
        yield f"{origin}: two names differ in upper and lower case only; rename one"


def _resolved(sources: StageSettings, earlier: Sequence[str]) -> StageSettings:
    """Replace ``previous`` by the name of the stage before."""
    last = earlier[-1] if earlier else PREVIOUS
    labels = [last if name == PREVIOUS else name for name in sources.labels_from]
    weights = last if sources.weights_from == PREVIOUS else sources.weights_from
    return sources.model_copy(update={"labels_from": labels, "weights_from": weights})


def _wrong_sources(
    where: str, sources: StageSettings, earlier: Sequence[str], config: RunConfig
) -> Iterator[str]:
    for source in sources.sources:
        if source not in earlier:
            hint = did_you_mean(source, earlier)
            yield f"{where}: no earlier stage is called {source!r}{hint}"
    if len({*sources.labels_from}) < len(sources.labels_from):
        yield f"{where}.labels_from: a stage is given twice; give each once"
    if sources.labels_from and config.settings.pseudo_labels:
        yield f"{where}: labels_from and pseudo_labels are both given; leave one out"
    if sources.labels_from and config.settings.task == "multilabel":
        yield f"{where}: labels_from supports --task multiclass only; leave it out"
    if sources.weights_from and config.settings.weights:
        yield f"{where}: weights_from and weights are both given; leave one out"
    if sources.labels_from and config.settings.stream_buffer is not None:
        yield f"{where}: labels_from reads all images; leave stream_buffer out"


def _fixed(stage: Stage) -> Tree:
    """Return the settings that a resumed stage must keep."""
    run = {k: v for k, v in stage.config.tree().items() if k not in FREE_ON_RESUME}
    return run | {"sources": stage.sources.model_dump()}
