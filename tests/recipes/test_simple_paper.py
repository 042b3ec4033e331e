"""Recipes of the SimPLE paper, compared with every value of its tables."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ssl_toolkit import FeatureAlgorithm, registry
from ssl_toolkit.augment.fixed import steps
from ssl_toolkit.config.loading import RunConfig, load_config
from ssl_toolkit.config.run_defaults import profile_options
from ssl_toolkit.config.yaml import configs_dir
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.recipes import find_recipe, load_recipes

PAPER = json.loads((configs_dir() / "recipes" / "simple.json").read_text("utf-8"))
CELLS = {cell["id"]: cell for cell in PAPER["cells"]}
OWN = [name for name, cell in CELLS.items() if "settings" in cell]
"""Rows that the paper measured itself."""

DATASETS = {
    "CIFAR-10": ("cifar10", 10),
    "CIFAR-100": ("cifar100", 100),
    "SVHN": ("svhn", 10),
    "Mini-ImageNet": ("mini_imagenet", 100),
    "DomainNet-Real": ("domainnet_real", 345),
}
BACKBONES = {
    "WRN-28-2": "wrn_28_2",
    "WRN-28-8": "wrn_28_8",
    "ResNet-18": "resnet18",
    "ResNet-50": "resnet50",
}
ALGORITHMS = {
    "VAT": "vat",
    "Mean Teacher": "mean_teacher",
    "MixMatch": "mixmatch",
    "MixMatch Enhanced": "mixmatch_enhanced",
    "ReMixMatch": "remixmatch",
    "FixMatch": "fixmatch",
    "SimPLE": "simple",
    "Label Propagation": "deep_label_propagation",
    "Fully supervised": "fully_supervised",
    "Supervised with EMA": "supervised",
}
"""Methods of the tables; the others are ablations of SimPLE."""


@dataclass(frozen=True)
class Row:
    """A resolved recipe."""

    name: str
    config: RunConfig

    @property
    def options(self) -> dict[str, Any]:
        return self.config.algorithm.model_dump()

    def has(self, option: str, value: Any) -> bool:
        """True for a value of an option, and for a method that has no such option."""
        return bool(self.options.get(option, value) == value)


@functools.cache
def row_of(name: str) -> Row:
    return Row(name, resolve_config(load_config([], {"recipe": name}))[0])


def has_labels(row: Row, labels: Any) -> bool:
    classes = DATASETS[CELLS[row.name]["dataset"]][1]
    settings = row.config.settings
    if labels == "all":
        return settings.algo == "fully_supervised"
    return labels == (settings.num_labels or (settings.labels_per_class or 0) * classes)


def has_initial_weights(row: Row, init: str) -> bool:
    made_by = find_recipe(row.name).weights_of
    if init == "DomainNet-Real":
        assert made_by is not None
        return row_of(made_by).config.settings.dataset == "domainnet_real"
    return made_by is None and row.config.settings.pretrained is (init == "ImageNet-1K")


def has_optimizer(row: Row, text: str) -> bool:
    optimizer = row.config.settings.optimizer
    if text == "AdamW":
        return optimizer.name == "adamw"
    assert text == "SGD, Nesterov, momentum 0.9"
    return (optimizer.name, optimizer.nesterov, optimizer.momentum) == ("sgd", True, 0.9)


def has_schedule(row: Row, text: str) -> bool:
    schedule = row.config.settings.schedule
    if text == "constant":
        return schedule.name == "constant"
    assert text == "cosine, 7/16 of pi"
    return (schedule.name, schedule.cycles, schedule.warmup_steps) == ("cosine", 7 / 16, 0)


def has_decay(row: Row, decay: float) -> bool:
    ema = row.config.settings.ema
    return bool(ema) and ema.decay == decay and not ema.warmup


def has_note(row: Row, note: str) -> bool:
    settings = row.config.settings
    if note == "flip and crop":
        return settings.augment.flip is True
    return settings.augment.strong == ("ctaugment" if note.startswith("CTA") else "randaugment")


Check = Callable[[Row, Any], bool]
IN_CELL: dict[str, Check] = {
    "id": lambda row, value: find_recipe(row.name).id == value,
    "table": lambda row, value: find_recipe(row.name).table == value,
    "method": lambda row, value: row.config.settings.algo == ALGORITHMS.get(value, "simple"),
    "dataset": lambda row, value: row.config.settings.dataset == DATASETS[value][0],
    "labels": has_labels,
    "backbone": lambda row, value: row.config.settings.backbone == BACKBONES[value],
    "top1": lambda row, value: published(row).top1 == value,
    "by": lambda row, value: published(row).by == value,
    "note": lambda row, value: published(row).note == value and has_note(row, value),
    "augment": lambda row, value: row.config.settings.augment.strong == value,
    "init": has_initial_weights,
    "convergence_step": lambda row, value: (
        (row.config.settings.steps or 0) >= int(value.removesuffix("K")) * 1000
    ),
    "settings": lambda row, value: bool(group(value)),
}
IN_BOTH: dict[str, Check] = {
    name: functools.partial(lambda row, value, name: row.has(name, value), name=name)
    for name in (
        "weak_views",
        "strong_views",
        "temperature",
        "confidence_threshold",
        "similarity_threshold",
        "unsupervised_weight",
        "pair_weight",
    )
}
IN_GROUP: dict[str, Check] = {
    "mixup_alpha": lambda row, value: row.has("alpha", value),
    "ema_decay": has_decay,
    "lr": lambda row, value: row.config.settings.lr == value,
    "classifier_lr": lambda row, value: row.config.settings.lr == value,
    "feature_lr": lambda row, value: row.config.settings.optimizer.backbone_lr == value,
    "weight_decay": lambda row, value: row.config.settings.optimizer.weight_decay == value,
    "batch_size": lambda row, value: row.config.settings.batch_size == value,
    "backbone": lambda row, value: row.config.settings.backbone == BACKBONES[value],
    "optimizer": has_optimizer,
    "schedule": has_schedule,
}


def published(row: Row) -> Any:
    return find_recipe(row.name).published


def group(path: str) -> dict[str, Any]:
    table, name = path.split(".")
    values: dict[str, Any] = PAPER["hyperparameters"][table][name]
    return values


def differing(row: Row, values: dict[str, Any], checks: dict[str, Check]) -> Iterator[str]:
    for key, value in values.items():
        if not checks[key](row, value):  # a KeyError is a value that nothing compares
            yield f"{key}: {value}"


def test_every_cell_of_the_tables_has_a_recipe_with_its_number() -> None:
    assert len(CELLS) == 59
    rows = {name: recipe for name, recipe in load_recipes().items() if recipe.published}
    assert [name for name, r in rows.items() if r.paper.startswith("SimPLE")] == list(CELLS)
    assert PAPER.keys() - {"source", "units", "note", "validation_and_splits"} == {
        "cells",
        "hyperparameters",
        "fixed_augmentation_in_order",
    }


@pytest.mark.parametrize("name", CELLS)
def test_a_recipe_has_every_value_of_its_cell(name: str) -> None:
    assert [*differing(row_of(name), CELLS[name], IN_CELL | IN_BOTH)] == []


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_has_the_hyperparameters_of_the_paper(name: str) -> None:
    cell = CELLS[name]
    values = {key: value for key, value in group(cell["settings"]).items() if key not in cell}
    assert [*differing(row_of(name), values, IN_GROUP | IN_BOTH)] == []


def test_every_table_of_hyperparameters_is_compared() -> None:
    named = {CELLS[name]["settings"] for name in OWN}
    tables = PAPER["hyperparameters"]
    assert named == {f"{table}.{name}" for table, groups in tables.items() for name in groups}
    # A value is compared where its method has the option: each by one row of SimPLE or MixMatch.
    for option in IN_BOTH:
        assert any(option in row_of(name).options for name in OWN), option


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_has_what_the_authors_code_adds(name: str) -> None:
    row, settings = row_of(name), row_of(name).config.settings
    assert (settings.optimizer.weight_decay_on, settings.optimizer.clip_norm) == ("all", 5)
    assert row.has("weak_views", 2)  # K; the tables' is strong_views
    assert row.has("rampup_steps", 0 if settings.algo == "simple" else None)
    assert settings.labeled_in_pool is False
    assert settings.augment.flip is True
    assert settings.profile == "paper"
    wide = str(settings.backbone).startswith("wrn")
    assert settings.model.batchnorm_momentum == (0.001 if wide else 0.1)
    if settings.dataset in ("mini_imagenet", "domainnet_real"):
        assert settings.image_size == 84
    if name.startswith("mini_imagenet"):
        assert settings.steps == 2048 * 1024
        assert settings.ema
        assert settings.ema.average_buffers
    else:
        assert settings.steps == 1024 * 1024


def test_validation_images_are_as_many_as_the_authors() -> None:
    images = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "mini_imagenet": 50_000}
    for name in OWN:
        settings = row_of(name).config.settings
        if settings.dataset in images:
            count = round((settings.val_fraction or 0) * images[settings.dataset])
            assert count == (7200 if settings.dataset == "mini_imagenet" else 5000), name


def test_the_ablation_of_the_distance_has_no_number() -> None:
    row = row_of("ablation/l2")
    assert row.options["pair_distance"] == "l2"
    assert row.options | {"pair_distance": "bhattacharyya"} == row_of("ablation/01").options
    assert published(row) is None


def test_pretraining_on_domainnet_real_uses_all_labels_and_the_same_network() -> None:
    settings = row_of("transfer_mini_imagenet/pretrain").config.settings
    later = row_of("transfer_mini_imagenet/07").config.settings
    assert (settings.algo, settings.pretrained) == ("fully_supervised", False)
    assert (settings.backbone, settings.image_size) == (later.backbone, later.image_size)


def test_resnet_50_is_trained_as_a_whole_from_imagenet() -> None:
    settings = row_of("transfer_domainnet_real/04").config.settings
    model = settings.model
    assert (settings.pretrained, model.freeze, model.stages) == (True, "none", 0)
    assert (model.head_init, model.probe) == ("random", False)


def test_the_fixed_augmentation_is_that_of_the_paper() -> None:
    names = {
        "mirror": "horizontal flip",
        "crop": "random resized crop",
        "blur": "Gaussian blur",
        "contrast": "color jitter",
        "erase": "random erasing",
        "affine": "random affine",
    }
    applied = steps(84, 84)
    table = PAPER["fixed_augmentation_in_order"]
    assert [names[name] for name, _ in applied] == [name for name, _ in table]
    for (_, step), (name, values) in zip(applied, table, strict=True):
        for key, value in values.items():
            drawn = step._param_generator
            got = {
                "p": lambda step=step: step.p,
                "kernel": lambda step=step: list(step.flags["kernel_size"]),
                "sigma": lambda drawn=drawn: list(drawn.sigma),
                "shear": lambda drawn=drawn: list(drawn.shear)[:2],
            }.get(key, lambda drawn=drawn, key=key: list(getattr(drawn, key)))()
            assert got == value, f"{name}: {key}"


@pytest.mark.parametrize("ids", [("04", "cifar100"), ("05", "cifar100"), ("06", "cifar100")])
def test_rows_quoted_from_fixmatch_run_on_all_images(ids: tuple[str, str]) -> None:
    settings = row_of(f"cifar100/{ids[0]}").config.settings
    assert (settings.val_fraction, settings.optimizer.clip_norm) == (0, None)
    assert settings.optimizer.weight_decay_on == "kernels"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cifar10_svhn/02", {"epsilon": 3, "unsupervised_weight": 0.3, "entropy_weight": 0.06}),
        ("cifar10_svhn/06", {"unsupervised_weight": 50, "rampup_fraction": 0.4}),
        ("cifar10_svhn/08", {"unsupervised_weight": 150, "rampup_fraction": 0.4}),
        ("cifar10_svhn/10", {"unsupervised_weight": 75, "alpha": 0.75, "rampup_steps": 16384}),
        ("cifar10_svhn/12", {"unsupervised_weight": 250, "alpha": 0.75, "rampup_steps": 16384}),
        ("cifar100/04", {"unsupervised_weight": 150, "weak_views": 2, "temperature": 0.5}),
        ("cifar10_svhn/14", {"strong_views": 8, "strong_weight": 0.5, "rotation_weight": 0.5}),
        ("cifar10_svhn/16", {"unsupervised_weight": 1.5, "rampup_steps": 16384}),
        ("cifar10_svhn/17", {"confidence_threshold": 0.95, "unlabeled_ratio": 7}),
        ("mini_imagenet/04", {"unsupervised_weight": 100, "unlabeled_ratio": 2}),
        ("mini_imagenet/05", {"warmup_fraction": 0.5, "neighbors": 50, "alpha": 0.99}),
    ],
)
def test_quoted_rows_have_the_options_of_their_own_papers(
    name: str, values: dict[str, float]
) -> None:
    options = row_of(name).options
    assert {key: options[key] for key in values} == values


@pytest.mark.parametrize(
    ("name", "lr", "decay", "flip"),
    [
        ("cifar10_svhn/02", 0.002, 0.02, True),
        ("cifar10_svhn/04", 0.002, 0.02, False),
        ("cifar10_svhn/06", 0.002, 0.2, True),
        ("cifar10_svhn/08", 0.002, 0.02, False),
        ("cifar10_svhn/12", 0.002, 0.02, False),
        ("cifar10_svhn/14", 0.002, 0.02, True),
        ("cifar10_svhn/18", 0.03, 0.0005, False),
        ("cifar10_svhn/23", 0.002, 0.02, True),
        ("cifar10_svhn/24", 0.002, 0.002, True),
        ("cifar100/04", 0.002, 0.04, True),
        ("cifar100/06", 0.03, 0.001, True),
        ("mini_imagenet/04", 0.2, 0.0002, True),
    ],
)
def test_quoted_rows_are_trained_as_in_their_own_papers(
    name: str, lr: float, decay: float, flip: bool
) -> None:
    settings = row_of(name).config.settings
    assert (settings.lr, settings.optimizer.weight_decay) == (lr, decay)
    assert settings.augment.flip is flip
    assert settings.val_fraction == 0
    if name != "mini_imagenet/04":
        assert (settings.steps, settings.batch_size) == (1024 * 1024, 64)
        assert settings.optimizer.weight_decay_on == "kernels"


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_does_not_override_the_reference_profile(name: str) -> None:
    """A value that the recipe fixes would hide what `--profile reference` sets."""
    recipe, algorithm = find_recipe(name), row_of(name).config.section
    stated = profile_options(registry.load("algorithms", algorithm), "reference")
    fixed = recipe.settings.get(recipe.settings["algo"], {}).keys()
    of_the_paper = {"strong_views", "pair_weight", "rampup_steps", "rampup_fraction"}
    assert fixed & (stated.keys() - of_the_paper) == set()
    assert "cycles" not in recipe.settings["schedule"]
    assert "strong_options" not in recipe.settings["augment"]


def test_every_algorithm_has_a_recipe() -> None:
    # Probes fit a head to features at once: they have no schedule of a paper. The rows of
    # OpenMatch's paper have pools with images of no class, which no data set here provides.
    algorithms = {
        entry.name
        for entry in registry.entries("algorithms")
        if entry.built_in
        and not issubclass(registry.load("algorithms", entry.name), FeatureAlgorithm)
    }
    recipes = {recipe.settings["algo"] for recipe in load_recipes().values()}
    assert recipes == algorithms - {"openmatch"}
