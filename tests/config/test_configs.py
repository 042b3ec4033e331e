"""Every shipped configuration is valid, and the papers' rows hold the papers' values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ssl_toolkit import FeatureAlgorithm, registry
from ssl_toolkit.comparisons.comparability import differences
from ssl_toolkit.config.comparison import allowed_keys, load_comparison
from ssl_toolkit.config.loading import RunConfig, load_config
from ssl_toolkit.config.settings import shared_keys
from ssl_toolkit.config.yaml import configs_dir, find_config
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ConfigError

ALL = sorted(configs_dir().rglob("*.yaml"))
COMPARISONS = [path for path in ALL if path.parent.name == "compare"]
STAGES = [path for path in ALL if path.parent.name == "stages"]
RECIPES = [path for path in ALL if path.parent.name == "recipes"]
FILES = [path for path in ALL if path not in (*COMPARISONS, *STAGES, *RECIPES)]
PAPER = [path for path in FILES if path.parent.name == "paper"]

STEPS = 1024 * 1024
SGD = {"name": "sgd", "momentum": 0.9, "nesterov": True}

# The row, and what it sets beside the values that all rows have in common.
SIMPLE_ROWS: dict[str, dict[str, Any]] = {
    "simple-cifar10-wrn_28_2": {"views": 7, "weight": 75, "weight_decay": 5e-4},
    "simple-svhn-wrn_28_2": {"views": 7, "weight": 250, "weight_decay": 5e-4},
    "simple-cifar100-wrn_28_8": {"views": 4, "weight": 150, "weight_decay": 1e-3},
    "simple-cifar100-wrn_28_2": {"views": 4, "weight": 150, "weight_decay": 0.04, "adamw": True},
}


def load(name: str) -> RunConfig:
    return resolve_config(load_config([find_config(f"paper/{name}.yaml")]))[0]


def test_the_folder_is_found_and_not_empty() -> None:
    assert (configs_dir() / "quickstart.yaml").is_file()
    assert find_config("quickstart.yaml") == configs_dir() / "quickstart.yaml"
    assert {path.stem for path in PAPER} >= SIMPLE_ROWS.keys()
    with pytest.raises(ConfigError, match=r"no such .* mean 'quickstart\.yaml'\?"):
        find_config("Quick-Start.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_validates_and_resolves(path: Path) -> None:
    config, _ = resolve_config(load_config([path]))
    left_open = {
        "recipe",
        "root",
        "labels",
        "pseudo_labels",
        "split",
        "num_labels",
        "labels_per_class",
        "weights",
        "data",
        "classes",
    }
    unset = {key for key, value in config.settings.model_dump().items() if value is None}
    assert unset <= left_open | {
        "labeled_in_pool",
        "time_limit",
        "minutes",
        "output",
        "group",
        "stream_buffer",
    }


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_a_comparison_validates_and_differs_only_as_declared(path: Path) -> None:
    comparison = load_comparison([path])
    configs = {row.name: resolve_config(row.config)[0] for row in comparison.rows}
    assert len(configs) >= 6
    shared = {name: shared_keys(c.tree(), c.section) for name, c in configs.items()}
    allowed = allowed_keys(comparison.settings, comparison.rows)
    stated = {name: c.run_defaults() for name, c in configs.items()}
    assert differences(shared, allowed, stated)[1] == []
    everything = {json.dumps(c.tree(), sort_keys=True) for c in configs.values()}
    assert len(everything) == len(configs)


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_a_paper_file_is_named_after_what_it_runs(path: Path) -> None:
    settings = load_config([path]).settings
    assert path.stem == f"{settings.algo}-{settings.dataset}-{settings.backbone}"


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_a_paper_file_has_the_length_and_the_average_of_the_papers(path: Path) -> None:
    settings = load(path.stem).settings
    assert (settings.steps, settings.batch_size) == (STEPS, 64)
    assert settings.ema
    assert (settings.ema.decay, settings.ema.warmup) == (0.999, False)
    assert settings.ema.average_buffers is False
    assert settings.model.batchnorm_momentum == 0.001
    assert settings.profile == "paper"


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_a_paper_file_does_not_override_the_reference_profile(path: Path) -> None:
    """A value that the file fixes would hide what `--profile reference` sets."""
    config = load_config([path], {"profile": "reference"})
    algorithm = type(config.algorithm)
    kept = {"rampup_steps", "strong_views", "pair_weight"} | (
        {"rampup_fraction"} if algorithm.reference else set()
    )
    for key, value in algorithm.reference.items():
        if key not in kept:
            assert getattr(config.algorithm, key) == value
    assert config.settings.schedule.cycles == 1023 / 2048
    for key, value in type(config.strong).reference.items():
        assert getattr(config.strong, key) == value


@pytest.mark.parametrize("name", SIMPLE_ROWS)
def test_a_row_of_simple(name: str) -> None:
    row, config = SIMPLE_ROWS[name], load(name)
    options, settings = config.algorithm.model_dump(), config.settings
    assert options["strong_views"] == row["views"]
    assert options["unsupervised_weight"] == options["pair_weight"] == row["weight"]
    assert options["weak_views"] == 2
    assert (options["confidence_threshold"], options["similarity_threshold"]) == (0.95, 0.9)
    assert options["temperature"] == 0.5
    assert options["rampup_steps"] == 0
    assert options["unlabeled_ratio"] == 1
    optimizer = settings.optimizer.model_dump()
    assert optimizer["weight_decay"] == row["weight_decay"]
    assert (optimizer["weight_decay_on"], optimizer["clip_norm"]) == ("all", 5)
    if row.get("adamw"):
        assert (optimizer["name"], settings.lr, settings.schedule.name) == (
            "adamw",
            0.002,
            "constant",
        )
    else:
        assert SGD.items() <= optimizer.items()
        assert (settings.lr, settings.schedule.name) == (0.03, "cosine")
        assert (settings.schedule.cycles, settings.schedule.warmup_steps) == (7 / 16, 0)
    assert settings.augment.flip is True  # as published, on SVHN too
    assert settings.augment.strong == "randaugment"
    assert settings.labeled_in_pool is False


@pytest.mark.parametrize(
    ("name", "weight", "weight_decay"),
    [
        ("mixmatch-cifar10-wrn_28_2", 75, 0.02),
        ("mixmatch-svhn-wrn_28_2", 250, 0.02),
        ("mixmatch-cifar100-wrn_28_8", 150, 0.04),
    ],
)
def test_a_row_of_mixmatch(name: str, weight: float, weight_decay: float) -> None:
    config = load(name)
    options, settings = config.algorithm.model_dump(), config.settings
    assert (options["weak_views"], options["alpha"], options["temperature"]) == (2, 0.75, 0.5)
    assert (options["unsupervised_weight"], options["rampup_steps"]) == (weight, 16384)
    optimizer = settings.optimizer
    assert (optimizer.name, settings.lr, settings.schedule.name) == ("adamw", 0.002, "constant")
    assert (optimizer.weight_decay, optimizer.weight_decay_on) == (weight_decay, "kernels")
    assert optimizer.clip_norm is None
    assert settings.augment.flip is (settings.dataset != "svhn")


def test_the_row_of_mixmatch_enhanced() -> None:
    options = load("mixmatch_enhanced-cifar100-wrn_28_2").algorithm.model_dump()
    assert (options["weak_views"], options["strong_views"]) == (2, 4)
    assert (options["unsupervised_weight"], options["rampup_steps"]) == (150, 16384)


def test_the_row_of_remixmatch() -> None:
    config = load("remixmatch-cifar10-wrn_28_2")
    options, settings = config.algorithm.model_dump(), config.settings
    weights = [options[f"{name}_weight"] for name in ("unsupervised", "strong", "rotation")]
    assert weights == [1.5, 0.5, 0.5]
    assert (options["strong_views"], options["alpha"], options["temperature"]) == (8, 0.75, 0.5)
    assert (options["rampup_steps"], options["unlabeled_ratio"]) == (16384, 1)
    assert (settings.optimizer.name, settings.lr) == ("adamw", 0.002)
    assert settings.optimizer.weight_decay == 0.02
    assert settings.augment.strong == "ctaugment"
    augmenter = config.strong.model_dump()
    assert (augmenter["depth"], augmenter["decay"], augmenter["threshold"]) == (2, 0.99, 0.8)


@pytest.mark.parametrize(
    ("name", "weight_decay"),
    [
        ("fixmatch-cifar10-wrn_28_2", 5e-4),
        ("fixmatch-svhn-wrn_28_2", 5e-4),
        ("fixmatch-cifar100-wrn_28_8", 1e-3),
    ],
)
def test_a_row_of_fixmatch(name: str, weight_decay: float) -> None:
    config = load(name)
    options, settings = config.algorithm.model_dump(), config.settings
    assert (options["confidence_threshold"], options["unsupervised_weight"]) == (0.95, 1)
    assert options["unlabeled_ratio"] == 7
    optimizer = settings.optimizer.model_dump()
    assert SGD.items() <= optimizer.items()
    assert (optimizer["weight_decay"], optimizer["weight_decay_on"]) == (weight_decay, "kernels")
    assert optimizer["clip_norm"] is None
    assert (settings.lr, settings.schedule.name, settings.schedule.cycles) == (
        0.03,
        "cosine",
        7 / 16,
    )
    assert settings.labeled_in_pool is True
    assert settings.augment.flip is (settings.dataset != "svhn")


def test_every_algorithm_has_a_paper_file() -> None:
    algorithms = {e.name for e in registry.entries("algorithms") if e.built_in}
    # These fit a head to features at once: there is no schedule of a paper to keep to.
    algorithms = {
        name
        for name in algorithms
        if not issubclass(registry.load("algorithms", name), FeatureAlgorithm)
    }
    assert {path.stem.partition("-")[0] for path in PAPER} == algorithms


def test_the_quick_start_is_the_run_without_arguments() -> None:
    quick = resolve_config(load_config([configs_dir() / "quickstart.yaml"]))[0]
    assert quick.tree() == resolve_config(load_config())[0].tree()
