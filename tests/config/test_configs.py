"""Every shipped configuration is valid; tests of recipes and suites check theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ssl_toolkit.comparisons.comparability import differences
from ssl_toolkit.config.comparison import allowed_keys, load_comparison
from ssl_toolkit.config.loading import ResolvedConfig, load_config
from ssl_toolkit.config.settings import shared_keys
from ssl_toolkit.config.yaml import configs_dir, find_config
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.ops import cosine_factor

ALL = sorted(configs_dir().rglob("*.yaml"))
COMPARISONS = [path for path in ALL if path.parent.name == "compare"]
STAGES = [path for path in ALL if path.parent.name == "stages"]
RECIPES = [path for path in ALL if path.parent.name == "recipes"]
SUITES = [path for path in ALL if path.parent.name == "benchmarks"]
FILES = [path for path in ALL if path not in (*COMPARISONS, *STAGES, *RECIPES, *SUITES)]


def test_the_folder_is_found_and_not_empty() -> None:
    assert (configs_dir() / "quickstart.yaml").is_file()
    assert find_config("quickstart.yaml") == configs_dir() / "quickstart.yaml"
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
        "prior",
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


def test_the_quick_start_is_the_run_without_arguments() -> None:
    quick = resolve_config(load_config([configs_dir() / "quickstart.yaml"]))[0]
    assert quick.tree() == resolve_config(load_config())[0].tree()


@pytest.mark.parametrize("name", ["simple", "fixmatch"])
def test_a_fast_configuration_draws_fewer_images_and_ends_at_a_rate_of_zero(name: str) -> None:
    fast = resolve_config(load_config([find_config(f"fast/{name}.yaml")]))[0]
    usual = resolve_config(load_config([], {"algo": name}))[0]

    def images(config: ResolvedConfig) -> int:
        """Images that pass through the network, each view counted."""
        options: Any = config.algorithm
        views = getattr(options, "weak_views", 1) + getattr(options, "strong_views", 1)
        batch = config.settings.batch_size * (1 + options.unlabeled_ratio * views)
        return config.settings.steps * batch

    assert fast.settings.algo == name
    assert images(fast) < images(usual)
    steps, schedule = fast.settings.steps, fast.settings.schedule
    assert schedule.name == "cosine"
    assert cosine_factor(steps, steps, schedule.warmup_steps, schedule.cycles) < 1e-9
