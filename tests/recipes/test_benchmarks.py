"""Recipes of FixMatch's own table and of USB."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from ssl_toolkit.config.loading import RunConfig, load_config
from ssl_toolkit.config.yaml import configs_dir
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.recipes import Recipe, find_recipe
from ssl_toolkit.recipes.load import read_recipes

FILES = {"fixmatch": 20}


@functools.cache
def rows_of(file: str) -> tuple[Recipe, ...]:
    return tuple(read_recipes(configs_dir() / "recipes" / f"{file}.yaml"))


def run_of(row: str) -> RunConfig:
    return resolve_config(load_config([], {"recipe": row}))[0]


@pytest.mark.parametrize("file", FILES)
def test_every_row_resolves_and_has_a_number(file: str) -> None:
    rows = rows_of(file)
    assert len(rows) == FILES[file]
    for recipe in rows:
        assert run_of(recipe.id).settings.recipe == recipe.id
        assert recipe.published is not None
        assert any("tested" in line for line in recipe.deviations)
    cells = json.loads((configs_dir() / "recipes" / f"{file}.json").read_text("utf-8"))["cells"]
    assert {cell["id"] for cell in cells} == {recipe.id for recipe in rows}


@pytest.mark.parametrize(
    ("row", "published", "values"),
    [
        ("fixmatch_cifar10/labels4000-randaugment", 95.74, {"backbone": "wrn_28_2"}),
        ("fixmatch_cifar10/labels4000-ctaugment", 95.69, {"num_labels": 4000}),
        ("fixmatch_svhn/labels1000-ctaugment", 97.64, {"dataset": "svhn"}),
        ("fixmatch_cifar100/labels400-randaugment", 51.15, {"backbone": "wrn_28_8"}),
        ("fixmatch_stl10/ctaugment", 94.83, {"labels": "fold:0", "image_size": 96}),
    ],
)
def test_rows_of_fixmatch(row: str, published: float, values: dict[str, Any]) -> None:
    number = find_recipe(row).published
    assert number is not None
    assert (number.top1, number.by) == (published, "FixMatch's authors")
    settings = run_of(row).settings
    assert {key: getattr(settings, key) for key in values} == values
    assert row.endswith(settings.augment.strong)
    decay = 0.001 if settings.dataset == "cifar100" else 0.0005
    assert (settings.lr, settings.optimizer.weight_decay) == (0.03, decay)
    assert settings.augment.flip is (settings.dataset != "svhn")
