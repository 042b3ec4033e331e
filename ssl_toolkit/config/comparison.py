"""From files, flags and ``--set`` to the rows of a comparison, each a validated configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ssl_toolkit import registry
from ssl_toolkit.config.defaults import AUTO, PROBE
from ssl_toolkit.config.faults import Faults
from ssl_toolkit.config.label_counts import (
    LABEL_KEYS,
    Counts,
    LabelKey,
    curve_of,
    refuse_other_labels,
    row_name,
    with_labels,
)
from ssl_toolkit.config.loading import (
    Layer,
    RunConfig,
    merge,
    read_layers,
    validate,
)
from ssl_toolkit.config.merging import Tree, nested, without
from ssl_toolkit.config.options import Names, Options, option, setting
from ssl_toolkit.config.plugin_names import bare, section_of
from ssl_toolkit.config.seeds import Seeds
from ssl_toolkit.config.settings import FOLLOW_STEPS, Place, shared_keys
from ssl_toolkit.config.sweeps import combinations, describe, parse_sweep
from ssl_toolkit.errors import ConfigError, PluginError, UserError
from ssl_toolkit.registry import did_you_mean

ALL = "all"
"""In ``algos``: every registered algorithm that can train on these settings."""


class ComparisonSettings(Options):
    """The settings of a comparison, in addition to those that its rows share."""

    # fmt: off
    algos: Names = setting(
        [], help="algorithms, one row each; all: every one that can train on these settings",
        metavar="A,B,C",
    )
    rows: dict[str, dict[str, Any]] = option(
        {}, help="more rows: a name, its algorithm under `algo`, and its options"
    )
    seeds: Seeds = setting(
        [0, 1, 2], help="seeds, one run of each row per seed", min_length=1, metavar="0,1,5-9",
        default_text="0-2",
    )
    labels_per_class: Counts | None = setting(
        None, help="number of labeled images per class; several draw a label curve", min_length=1,
        metavar="N,N", default_text="by data set",
    )
    num_labels: Counts | None = setting(
        None, help="number of labeled images in total, stratified by class; several draw a curve",
        min_length=1, metavar="N,N",
    )
    sweep: dict[str, Any] = setting(
        {}, help="settings with the values to try; one row per combination", metavar="KEY=V,V",
        repeatable=True,
    )
    baseline: str | None = setting(
        None, help="row to compare the others with", metavar="ROW",
        default_text="the first baseline algorithm, else the linear probe, else the first row",
    )
    probe: bool = setting(
        True, help="add a row for the linear probe if all rows start from pre-trained weights",
        flag=True, default_text="on",
    )
    allow_different: Names = setting(
        [], help="shared setting in which rows may differ", metavar="KEY", repeatable=True
    )
    budget: str = setting(
        "steps", metavar="steps|images=N|minutes=M",
        help="budget that all runs share: their steps, N images drawn, or M minutes of training",
        pattern=r"^(steps|(images|minutes)=[0-9]+(\.[0-9]+)?)$",
    )
    launcher: str = setting(
        "local", help="launcher of the runs: local, ray, slurm or a plugin's", min_length=1,
        metavar="NAME",
    )
    launcher_options: dict[str, Any] = option({}, help="options of the launcher")
    threads: int | None = setting(
        None, help="number of CPU threads per run", ge=1, metavar="N", default_text="cores / jobs"
    )
    name: str | None = setting(
        None, help="title", min_length=1, metavar="TEXT", default_text="the folder's name"
    )
    output: Place | None = setting(
        None, help="path to the folder of the comparison", metavar="DIR",
        default_text="runs/comparison-<data>",
    )
    # fmt: on

    @property
    def curve(self) -> LabelKey | None:
        """The setting with several numbers of labels; None without a label curve."""
        return curve_of({key: getattr(self, key) for key in LABEL_KEYS})


@dataclass(frozen=True)
class PlannedRow:
    """One row: an algorithm with its options."""

    name: str
    config: RunConfig
    """Of the first seed, not resolved."""
    optional: bool = False
    """True if it comes from ``all``: left out if it can't train, instead of refused."""
    labels: int | None = None
    """Number of labels; None without a label curve."""
    base: str = ""
    """Name without the number of labels; empty without a label curve."""

    @property
    def method(self) -> str:
        """The name, the same for each number of labels."""
        return self.base or self.name

    @property
    def slug(self) -> str:
        """The name as that of a folder."""
        return re.sub(r"[^\w.=-]+", "_", self.name).strip("_.") or "row"


@dataclass(frozen=True)
class ComparisonConfig:
    """A validated comparison."""

    settings: ComparisonSettings
    rows: tuple[PlannedRow, ...]
    tree: Tree
    """Plain types; read as a ``--config`` file they give this comparison back."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by the name of an algorithm or a row that ``all`` leaves out."""

    def without(self, reasons: Mapping[str, str]) -> ComparisonConfig:
        """Return the comparison without some rows.

        Args:
            reasons: By the name of each row to leave out.
        """
        rows = tuple(row for row in self.rows if row.name not in reasons)
        return replace(self, rows=rows, left_out={**self.left_out, **reasons})

    @property
    def baseline(self) -> str:
        """Name of the row that the others are compared with; of a label curve, its `method`."""
        if self.settings.baseline is not None:
            return self.settings.baseline
        pretrained = self.rows[0].config.settings.pretrained
        by_algorithm = {row.config.section: row.method for row in reversed(self.rows)}
        first = self.rows[0].method
        probe = by_algorithm.get(PROBE, first) if pretrained else first
        baselines = (row.method for row in self.rows if _is_baseline(row))
        return next(baselines, probe)


def _is_baseline(row: PlannedRow) -> bool:
    algo = row.config.settings.algo
    return algo != AUTO and bool(registry.load("algorithms", algo).is_baseline)


def load_comparison(
    files: Sequence[Path] = (),
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    sweeps: Sequence[str] = (),
) -> ComparisonConfig:
    """Layer and validate, as `load_config` does for a run.

    Args:
        files: YAML files: keys of `ComparisonSettings` and of a run; later ones win.
        flags: keys of both kinds; None where the user gave none.
        sets: ``key.path=value``.
        sweeps: ``key.path=value,value``.

    Raises:
        ConfigError: all faults that were found, each reported once.
        PluginError: an algorithm, an augmenter or the launcher is unknown or broken.
    """
    layers = [*read_layers(files, flags or {}, sets), *map(parse_sweep, sweeps)]
    keys = ComparisonSettings.model_fields.keys()
    tree, origins = merge([layer.only(keys) for layer in layers])
    faults = Faults(origins, "")
    settings = faults.validate(ComparisonSettings, tree)
    faults.stop()
    assert settings is not None
    shared = [layer.without(keys) for layer in layers]
    every, left_out = _all_algorithms(settings)
    shared_tree, given = merge(shared)
    curve = settings.curve
    if curve:
        of_rows = [(f"rows.{name}", of_row) for name, of_row in settings.rows.items()]
        found = [*((layer.origin, layer.tree) for layer in shared), *of_rows]
        refuse_other_labels(curve, found, settings.sweep)
    else:
        single = {key: counts[0] for key in LABEL_KEYS if (counts := getattr(settings, key))}
        shared += [Layer(origins[key,], {key: count}) for key, count in single.items()]
    rows = _with_probe(settings, tuple(_rows(settings, shared, every)), given)
    if curve:
        rows = tuple(_at_each_number(rows, curve, getattr(settings, curve)))
    comparison = ComparisonConfig(settings, rows, shared_tree | tree, left_out)
    names = [*dict.fromkeys(row.method for row in rows)]
    if comparison.baseline not in names:
        raise ConfigError(
            f"baseline {comparison.baseline!r}: no row has this name"
            f"{did_you_mean(comparison.baseline, names)}; rows: {', '.join(names)}"
        )
    _check_allowed(settings, rows)
    return comparison


def _with_probe(
    settings: ComparisonSettings, rows: tuple[PlannedRow, ...], given: Container[tuple[str, ...]]
) -> tuple[PlannedRow, ...]:
    """The rows and the linear probe, with what the first one shares with the others."""
    fits = all(r.config.settings.pretrained and not r.config.settings.stream_buffer for r in rows)
    there = any(PROBE in (row.config.section, row.slug.lower()) for row in rows)
    if there or not (fits and settings.probe and registry.has("algorithms", PROBE)):
        return rows
    first = rows[0].config
    tree = {key: value for key, value in first.tree().items() if key != first.section}
    for key in first.run_defaults():
        if (path := tuple(key.split("."))) not in given:
            tree = without(tree, path)
    return (*rows, PlannedRow(PROBE, validate([Layer(f"row {PROBE}", tree | {"algo": PROBE})])))


def _at_each_number(
    rows: Sequence[PlannedRow], key: LabelKey, counts: Sequence[int]
) -> Iterator[PlannedRow]:
    """The rows of a label curve; those with the same number of labels are adjacent."""
    for count in counts:
        for row in rows:
            name, config = row_name(row.name, key, count), with_labels(row.config, key, count)
            yield replace(row, name=name, config=config, labels=count, base=row.name)


def _all_algorithms(settings: ComparisonSettings) -> tuple[list[str], dict[str, str]]:
    """Return the algorithms that ``all`` adds, and the reasons of those that it leaves out."""
    if ALL not in settings.algos:
        return [], {}
    every, left_out = [], {}
    for name in {entry.name: None for entry in registry.entries("algorithms")}:
        if name in settings.algos:
            continue
        try:
            hidden = registry.load("algorithms", name).uses_hidden_labels
        except PluginError as error:
            left_out[name] = error.messages[0]
            continue
        if hidden:
            left_out[name] = "uses the hidden labels of unlabeled images"
        else:
            every.append(name)
    return every, left_out


def _rows(
    settings: ComparisonSettings, layers: Sequence[Layer], every: Sequence[str]
) -> Iterator[PlannedRow]:
    """The rows of ``algos`` and ``rows``, multiplied by the sweeps."""
    for name, plural in (("algo", "algos"), ("seed", "seeds")):
        for layer in layers:
            if name in layer.tree:
                raise ConfigError(f"{layer.origin}: {name}: a comparison takes {plural}: a,b,c")
    trees: dict[str, Tree] = {}
    for item in settings.algos:
        for algo in every if item == ALL else [item]:
            if algo in trees:
                raise ConfigError(f"algos: {item} is given twice; give each once")
            trees[algo] = {"algo": algo}
    for name, tree in settings.rows.items():
        if name in trees or "algo" not in tree:
            fault = "an algorithm has this name" if name in trees else "give its algorithm as algo"
            raise ConfigError(f"rows.{name}: {fault}")
        trees[name] = tree
    if not trees:
        raise ConfigError("no algorithms to compare; give --algos simple,fixmatch,supervised")
    sections = {name: section_of(str(tree["algo"])) for name, tree in trees.items()}
    _check_sections(sections.values(), settings, layers)

    messages: list[str] = []
    plugins: list[str] = []
    folders: dict[str, str] = {}
    for name, tree in trees.items():
        absent = _absent_keys(name, sections, trees)
        sweep = {k: v for k, v in settings.sweep.items() if tuple(k.split(".")[:2]) not in absent}
        for changes in combinations(sweep, sections[name], set(sections.values())):
            row_name = " ".join(
                [name, *(describe(k, v, sections[name]) for k, v in changes.items())]
            )
            others = {*sections.values()} - {sections[name]}
            of_row = [_without(layer.without(others), absent) for layer in layers]
            of_row.append(Layer(f"row {name}", tree))
            of_row += [Layer(f"sweep {key}", nested(key, value)) for key, value in changes.items()]
            of_row.append(Layer("comparison", {"seed": settings.seeds[0]}))
            try:
                optional = name in every and row_name != settings.baseline
                row = PlannedRow(row_name, validate(of_row), optional)
            except UserError as error:
                kind = plugins if isinstance(error, PluginError) else messages
                kind += [m for m in error.messages if m not in kind]
                continue
            if (minutes := row.config.settings.minutes) is not None:
                raise ConfigError(
                    f"minutes: {minutes:g}: the runs of a comparison are made equal by its budget; "
                    f"use --budget minutes={minutes:g}, which gives each run that time"
                )
            if row.slug.lower() in folders:
                raise ConfigError(
                    f"rows {folders[row.slug.lower()]!r} and {row_name!r} would share a folder; "
                    "rename one"
                )
            folders[row.slug.lower()] = row_name
            yield row
    if messages:
        raise ConfigError(messages + plugins)
    if plugins:
        raise PluginError(plugins)


def _absent_keys(
    name: str, sections: Mapping[str, str], trees: Mapping[str, Tree]
) -> set[tuple[str, str]]:
    """Return the keys of add-ons that only other rows apply to the algorithm of a row."""
    addons = {other: {*bare(str(tree["algo"])).split("+")[1:]} for other, tree in trees.items()}
    alike = [addons[other] for other in trees if sections[other] == sections[name]]
    absent = set().union(*alike) - addons[name]
    return {(section, addon) for section in (sections[name], "algorithm") for addon in absent}


def _without(layer: Layer, keys: Collection[tuple[str, str]]) -> Layer:
    """Return a layer without some keys."""
    tree = layer.tree
    for path in keys:
        if isinstance(tree.get(path[0]), dict):
            tree = without(tree, path)
    return Layer(layer.origin, tree)


def _check_sections(
    sections: Collection[str], settings: ComparisonSettings, layers: Sequence[Layer]
) -> None:
    """Refuse options of algorithms that no row uses, and ``algorithm.`` where it is ambiguous."""
    known = {entry.name for entry in registry.entries("algorithms")}
    origins = [(layer.origin, key) for layer in layers for key in layer.tree]
    origins += [("sweep", key.partition(".")[0]) for key in settings.sweep]
    messages = [
        f"{origin}: {key}: is an option of {key!r}, which is not compared; leave it out"
        for origin, key in origins
        if key in known and key not in sections
    ]
    if len(set(sections)) > 1:
        messages += [
            f"{origin}: algorithm: which of {', '.join(sorted(set(sections)))}? Name it instead"
            for origin, key in origins
            if key == "algorithm"
        ]
    if messages:
        raise ConfigError(messages)


def allowed_keys(settings: ComparisonSettings, rows: Sequence[PlannedRow]) -> set[str]:
    """Return shared keys in which rows may differ.

    They differ by permission, by a sweep, by the budget, or along a label curve.
    """
    sections = {row.config.section for row in rows} | {"algorithm"}
    swept = {key for key in settings.sweep if key.partition(".")[0] not in sections}
    budget = () if settings.budget == "steps" else FOLLOW_STEPS
    curve = () if settings.curve is None else (settings.curve,)
    return {*settings.allow_different, *swept, *budget, *curve}


def _check_allowed(settings: ComparisonSettings, rows: Sequence[PlannedRow]) -> None:
    known = {key for row in rows for key in shared_keys(row.config.tree(), row.config.section)}
    for key in settings.allow_different:
        if key not in known and not any(k.startswith(f"{key}.") for k in known):
            raise ConfigError(f"allow_different {key}: no shared key{did_you_mean(key, known)}")


Kind = Literal["steps", "images", "minutes"]


def parse_budget(text: str) -> tuple[Kind, float]:
    """Return the kind and the amount of a budget (0 for steps, which the configuration has)."""
    kind, _, amount = text.partition("=")
    return kind, float(amount or 0)  # type: ignore[return-value]
