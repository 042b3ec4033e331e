"""Recipes of USB's image suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from benchmark_files import (
    accept_tiny_files,
    write_cifar100,
    write_eurosat,
    write_semi_aves,
    write_stl10,
    write_tissue_mnist,
)

from ssl_toolkit import ModelError, train
from ssl_toolkit.config.loading import RunConfig, load_config
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.recipes import find_recipe, load_recipes


def run_of(row: str) -> RunConfig:
    return resolve_config(load_config([], {"recipe": row}))[0]


@pytest.mark.parametrize(
    ("row", "published", "values"),
    [
        (
            "usb_cifar100/labels200-fixmatch",
            70.4,
            {"labels_per_class": 2, "image_size": 32, "lr": 5e-4, "val_fraction": 0},
        ),
        ("usb_stl10/labels100-freematch", 91.48, {"labels_per_class": 10, "lr": 1e-4}),
        ("usb_eurosat/labels20-softmatch", 94.25, {"labels_per_class": 2, "lr": 5e-5}),
        ("usb_tissuemnist/tissue400-pi_model", 52.95, {"labels_per_class": 50, "lr": 5e-5}),
        ("usb_semi_aves/remixmatch", 69.8, {"labels_per_class": None, "image_size": 224}),
    ],
)
def test_rows_of_usb(row: str, published: float, values: dict[str, Any]) -> None:
    number = find_recipe(row).published
    assert number is not None
    assert (number.top1, number.by) == (published, "USB's authors")
    settings = run_of(row).settings
    assert {key: getattr(settings, key) for key in values} == values
    assert (settings.steps, settings.batch_size, settings.eval_every) == (204800, 8, 2048)
    optimizer, schedule = settings.optimizer, settings.schedule
    assert (optimizer.name, optimizer.weight_decay) == ("adamw", 5e-4)
    assert (schedule.name, schedule.cycles, schedule.warmup_steps) == ("cosine", 7 / 16, 5120)
    assert settings.ema is False
    assert settings.labeled_in_pool is True


USB = {
    "usb_cifar100/labels200-": ("vit_small", 2, 32, 0.2, 0.5, 21_398_400),
    "usb_stl10/labels40-": ("vit_base", None, 96, 0.2, 0.65, 85_675_776),
    "usb_eurosat/labels20-": ("vit_small", 2, 32, 0.2, None, 21_398_400),
    "usb_tissuemnist/tissue80-": ("vit_tiny", 2, 32, 0.1, 0.95, 5_390_784),
    "usb_semi_aves/": ("vit_small", None, None, 0.2, 0.65, 21_665_664),
}
"""Per table: ViT, patch, image size, drop path, layer decay, and parameters as in USB's code."""


@pytest.mark.parametrize("table", USB)
def test_networks_of_usb(table: str) -> None:
    name, patch, size, drop_path, layer_decay, parameters = USB[table]
    settings = run_of(f"{table}uda").settings
    given = {"patch_size": patch, "img_size": size, "drop_path_rate": drop_path}
    given = {key: value for key, value in given.items() if value is not None}
    assert settings.backbone == f"{name}_patch16_224"
    assert settings.model.args == given
    assert settings.optimizer.layer_decay == layer_decay
    with torch.device("meta"):
        network = timm.create_model(settings.backbone, num_classes=0, **settings.model.args)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_what_differs_between_the_data_sets_of_usb() -> None:
    steps = {table: run_of(f"{table}flexmatch").settings.schedule.warmup_steps for table in USB}
    assert steps == dict.fromkeys(USB, 0) | {"usb_stl10/labels40-": 5120}
    simmatch = [run_of(f"{table}simmatch").algorithm.model_dump() for table in USB]
    assert [options["temperature"] for options in simmatch] == [0.1, 0.1, 0.2, 0.2, 0.2]
    comatch = [run_of(f"{table}comatch").algorithm.model_dump() for table in USB]
    assert [options["contrast_weight"] for options in comatch] == [1, 5, 1, 1, 1]
    averaged = {
        recipe.settings["algo"]
        for recipe in load_recipes().values()
        if recipe.table == "usb_eurosat" and run_of(recipe.id).settings.ema is not False
    }
    assert averaged == {"comatch", "simmatch", "mean_teacher"}


WRITERS = {
    "usb_cifar100/labels200-freematch": write_cifar100,
    "usb_stl10/labels40-fixmatch": lambda root: write_stl10(root, 60, 20, 20),
    "usb_eurosat/labels20-comatch": write_eurosat,
    "usb_tissuemnist/tissue80-remixmatch": lambda root: write_tissue_mnist(root),
}


@pytest.mark.parametrize("row", WRITERS)
def test_rows_of_usb_train_on_files_in_their_published_form(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_tiny_files(monkeypatch)
    (tmp_path / "data").mkdir()
    WRITERS[row](tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    settings = {
        "recipe": row,
        "backbone": "test_vit",
        "root": "data",
        "scale": 1e-5,
        "batch_size": 4,
        "labels_per_class": 1,
        "device": "cpu",
        "output": "run",
    }
    weights = Path(find_recipe(row).settings["weights"])
    with pytest.raises(ModelError, match=rf"weights file {weights} not found"):
        train(settings)
    arguments = run_of(row).settings.model.args
    torch.save({"model": timm.create_model("test_vit", **arguments).state_dict()}, weights)
    summary = train(settings).summary
    assert summary.status == "completed"


@pytest.mark.slow
def test_a_row_of_semi_aves_trains_its_network(tmp_path: Path) -> None:
    write_semi_aves(
        tmp_path,
        l_train=[f"trainval_images/{n}/0.jpg {n}" for n in range(200)],
        val=["trainval_images/0/1.jpg 0", "trainval_images/1/1.jpg 1"],
        test=["test/0.jpg 0", "test/1.jpg 1"],
    )
    settings = {"recipe": "usb_semi_aves/supervised", "weights": None, "root": str(tmp_path)}
    small = {"scale": 1e-5, "batch_size": 2, "device": "cpu", "output": str(tmp_path / "run")}
    assert train(settings | small).summary.status == "completed"
