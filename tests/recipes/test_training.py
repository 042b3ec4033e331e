"""Recipes build their backbones, and train on tiny files in the form of their data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_files import (
    accept_tiny_files,
    write_cifar10,
    write_cifar100,
    write_domainnet_real,
    write_mini_imagenet,
    write_stl10,
    write_svhn,
)

from ssl_toolkit import train
from ssl_toolkit.models.factory import find_backbone
from ssl_toolkit.recipes import Recipe, find_recipe, load_recipes

RECIPES = [
    recipe
    for recipe in load_recipes().values()
    if recipe.table.startswith("usb_classic") or not recipe.table.startswith("usb_")
]
"""All but those of USB's ViTs."""
SHORT: dict[str, Any] = {
    "steps": 2,
    "eval_every": 2,
    "log_every": 1,
    "batch_size": 2,
    "eval_batch_size": 8,
    "labels_per_class": 2,
    "device": "cpu",
    "pretrained": False,
}
PARAMETERS = {
    ("wrn_28_2", 10): 1_467_610,
    ("wrn_28_2", 100): 1_479_220,
    ("wrn_28_2", 345): 1_510_825,
    ("wrn_28_8", 100): 23_401_012,
    ("resnet18", 100): 11_227_812,
    ("resnet50", 345): 24_214_937,
}
CLASSES = {"cifar100": 100, "mini_imagenet": 100, "domainnet_real": 345}


SMALL: dict[str, Any] = {"backbone": "wrn_10_1", "image_size": 32}


def groups(*, every: bool) -> list[Any]:
    """One row for each algorithm, backbone and data set together, or (not `every`) for each alone.

    The small network replaces the backbone, so that only algorithms, data sets and initial weights
    differ.
    """
    seen: set[tuple[str, ...]] = set()
    result = []
    for recipe in RECIPES:
        triple = tuple(recipe.settings[key] for key in ("algo", "backbone", "dataset"))
        keys = {triple}
        if not every:
            keys = {(triple[0],), (triple[2],), ("weights", str(recipe.weights_of))}
        if not keys <= seen:
            seen |= keys
            result.append(pytest.param(recipe, id=recipe.id))
    return result


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder, 20)
    write_cifar100(folder, 80, 10)
    write_svhn(folder, 60)
    write_stl10(folder, 30, 8, 10)
    write_mini_imagenet(folder / "mini_imagenet")
    write_domainnet_real(folder / "domainnet_real")
    return folder


@pytest.fixture(scope="module")
def small_weights(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weights_of(tmp_path_factory.mktemp("weights"), root, SHORT | SMALL)


def weights_of(folder: Path, root: Path, changes: Mapping[str, Any]) -> Path:
    """Train the row that makes the weights of others; return the path to them."""
    keys = {"root": str(root / "domainnet_real"), "output": str(folder / "run")}
    train({"recipe": "transfer_mini_imagenet/pretrain"} | keys | changes)
    return folder / "run" / "model" / "model.safetensors"


@pytest.mark.parametrize("recipe", groups(every=False))
def test_a_recipe_trains_a_small_network(
    recipe: Recipe, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_weights: Path
) -> None:
    accept_tiny_files(monkeypatch)
    check(recipe, root, tmp_path / "run", SHORT | SMALL, small_weights)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", groups(every=True))
def test_a_recipe_trains_its_network(
    recipe: Recipe, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_tiny_files(monkeypatch)
    weights = weights_of(tmp_path, root, SHORT) if recipe.weights_of else tmp_path
    check(recipe, root, tmp_path / "trained", SHORT, weights)


def check(
    recipe: Recipe, root: Path, output: Path, changes: Mapping[str, Any], weights: Path
) -> None:
    """Train two steps."""
    folder = root / recipe.settings["dataset"]
    keys = {"root": str(folder if folder.is_dir() else root), "output": str(output)}
    if recipe.weights_of is not None:
        keys["weights"] = str(weights)
    options = {"deep_label_propagation": {"scan_interval": 1, "neighbors": 3}}
    own = {key: value for key, value in options.items() if key == recipe.settings["algo"]}
    summary = train({"recipe": recipe.id} | own | keys | changes).summary
    assert (summary.status, summary.recipe, summary.steps) == ("completed", recipe.id, 2)
    assert "NaN" not in (output / "metrics.jsonl").read_text()


@pytest.mark.parametrize(("backbone", "classes"), [*PARAMETERS])
def test_a_backbone_has_the_parameters_of_the_paper(backbone: str, classes: int) -> None:
    plugin, name = find_backbone(backbone)
    with torch.device("meta"):
        network = plugin.build(name, image_size=84, pretrained=False)
    head = (network.feature_dim + 1) * classes
    count = sum(math.prod(parameter.shape) for parameter in network.parameters())
    assert count + head == PARAMETERS[backbone, classes]


def test_all_backbones_of_the_paper_are_counted() -> None:
    settings = (r.settings for r in RECIPES if r.paper.startswith("SimPLE"))
    used = {(one["backbone"], CLASSES.get(one["dataset"], 10)) for one in settings}
    assert used == PARAMETERS.keys()
    assert find_recipe("transfer_mini_imagenet/pretrain").settings["backbone"] == "wrn_28_2"
