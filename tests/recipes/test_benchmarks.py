"""Recipes of FixMatch's own table and of USB's suites."""

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

FILES = {"fixmatch": 20, "usb-classic": 215}
"""Number of rows."""
UNPUBLISHED = ("defixmatch", "debiaspl", "deep_label_propagation", "stl10")
"""Rows of the classic suite for which USB has no number."""


@functools.cache
def rows_of(file: str) -> tuple[Recipe, ...]:
    return tuple(read_recipes(configs_dir() / "recipes" / f"{file}.yaml"))


def run_of(row: str) -> RunConfig:
    return resolve_config(load_config([], {"recipe": row}))[0]


@pytest.mark.parametrize("file", FILES)
def test_every_row_resolves_and_has_its_number(file: str) -> None:
    rows = rows_of(file)
    assert len(rows) == FILES[file]
    for recipe in rows:
        assert run_of(recipe.id).settings.recipe == recipe.id
        unpublished = file == "usb-classic" and any(name in recipe.id for name in UNPUBLISHED)
        assert (recipe.published is None) == unpublished
        assert any("tested" in line for line in recipe.deviations)
    cells = json.loads((configs_dir() / "recipes" / f"{file}.json").read_text("utf-8"))["cells"]
    assert {cell["id"] for cell in cells} == {recipe.id for recipe in rows if recipe.published}


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


@pytest.mark.parametrize(
    ("row", "published", "values"),
    [
        ("cifar10/labels40-flexmatch", 94.79, {"labels_per_class": 4, "weight_decay": 5e-4}),
        ("cifar100/labels10000-fixmatch", 71.72, {"labels_per_class": 100, "weight_decay": 1e-3}),
        ("svhn/labels250-uda", 97.97, {"labels_per_class": 25, "weight_decay": 5e-4}),
    ],
)
def test_rows_of_the_classic_suite(row: str, published: float, values: dict[str, Any]) -> None:
    number = find_recipe(f"usb_classic_{row}").published
    assert number is not None
    assert (number.top1, number.by) == (published, "USB's authors")
    config = run_of(f"usb_classic_{row}")
    settings = config.settings
    values = values | {"steps": 2**20, "batch_size": 64, "backbone": "wrn_28_2", "lr": 0.03}
    found = settings.model_dump() | settings.optimizer.model_dump()
    assert {key: found[key] for key in values} == values
    assert settings.augment.flip is True
    strong = config.strong.model_dump()
    assert (strong["num_ops"], strong["probability"]) == (3, 1)


def test_what_differs_between_the_data_sets_of_the_classic_suite() -> None:
    labels = {"cifar10": 250, "cifar100": 400, "svhn": 250, "stl10": 250}
    for algo, option, values in (
        ("mixmatch", "unsupervised_weight", [100, 150, 100, 100]),
        ("comatch", "contrast_weight", [1, 1, 1, 5]),
    ):
        rows = (f"usb_classic_{data}/labels{count}-{algo}" for data, count in labels.items())
        assert [run_of(row).algorithm.model_dump()[option] for row in rows] == values
