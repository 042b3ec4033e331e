"""Files of recipes: how they are read, and how a run uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssl_toolkit import registry
from ssl_toolkit.config.loading import Layer, load_config, validate
from ssl_toolkit.config.options import Options, fields_of, is_in_steps
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.recipes import find_recipe, load_recipes
from ssl_toolkit.recipes.load import read_recipes

FILE = """
title: A paper
tables: {t: a table}
deviations: [all]
parts:
  base: {algo: simple, steps: 100, simple: {strong_views: 7}, deviations: [of base]}
  few: {num_labels: 40}
  more: {num_labels: 80}
rows:
  t/1: {parts: [base], settings: {simple: {pair_weight: 3}}, deviations: [of row]}
  t/2: {parts: [base, few, more], published: {top1: 50.5, by: them, labels: 80}, weights_of: t/1}
grids:
  - {table: t, parts: [base], axes: [[few, more], [base]], published: {few-base: 12.5}, by: us}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text, "utf-8")
    return path


def test_rows_are_made_of_parts_and_changes(tmp_path: Path) -> None:
    rows = {recipe.id: recipe for recipe in read_recipes(write(tmp_path, FILE))}
    assert list(rows) == ["t/1", "t/2", "t/few-base", "t/more-base"]
    first, second = rows["t/1"], rows["t/2"]
    assert first.settings == {
        "algo": "simple",
        "steps": "100",
        "simple": {"strong_views": "7", "pair_weight": "3"},
    }
    assert (first.table, first.title, first.paper) == ("t", "a table", "A paper")
    assert first.deviations == ("all", "of base", "of row")
    assert (first.published, first.weights_of) == (None, None)
    assert (second.settings["num_labels"], second.weights_of) == ("80", "t/1")
    assert second.published is not None
    assert (second.published.top1, second.published.by, second.published.labels) == (
        50.5,
        "them",
        80,
    )
    grid = rows["t/few-base"].published
    assert grid is not None
    assert (grid.top1, grid.by) == (12.5, "us")
    assert rows["t/more-base"].published is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("tables: {t", "tabels: {t"), r"file\.yaml: tabels: unknown key \(did you mean 'tables'"),
        (("parts: [base],", "part: [base],"), r"file\.yaml: rows\.t/1\.part: unknown key"),
        (("few, more],", "few, mor],"), r"file\.yaml: rows\.t/2: parts: mor: not found .*'more'"),
        (("t/1: {p", "u/1: {p"), r"file\.yaml: rows\.u/1: must be TABLE/NAME"),
        (("top1: 50.5", "top1: high"), r"rows\.t/2\.published\.top1: must be a number"),
        (("algo: simple, ", ""), r"rows\.t/1: algo: no part sets the algorithm"),
        (("title: A paper", "published: x.json"), r"x\.json: No such file"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        list(read_recipes(write(tmp_path, FILE.replace(*change, 1))))
    assert all("\n" not in text for text in caught.value.messages)


def test_a_part_may_have_options_of_several_algorithms(tmp_path: Path) -> None:
    text = FILE.replace("simple: {strong_views: 7}", "simple: {strong_views: 7}, uda: {x: 1}")
    assert "uda" not in next(iter(read_recipes(write(tmp_path, text)))).settings
    text = text.replace("uda", "udda")  # of no algorithm, and refused by a run
    assert "udda" in next(iter(read_recipes(write(tmp_path, text)))).settings


def test_numbers_come_from_the_json_beside_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, FILE.replace("title: A paper", "published: x.json"))
    cells = '{"cells": [{"id": "t/1", "top1": 3, "by": "A", "labels": "all", "other": 1}]}'
    (tmp_path / "x.json").write_text(cells, "utf-8")
    published = next(iter(read_recipes(path))).published
    assert published is not None
    assert (published.top1, published.by, published.labels) == (3, "A", "all")
    (tmp_path / "x.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match=r"x\.json: published: no list of valid cells"):
        list(read_recipes(path))


def test_parts_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("parts: {base: {algo: fixmatch}}\n", "utf-8")
    text = "tables: {t: T}\nrows: {t/1: {parts: [other.base]}}\n"
    (recipe,) = read_recipes(write(tmp_path, text))
    assert recipe.settings == {"algo": "fixmatch"}


def test_a_recipe_is_a_layer_below_files_and_flags(tmp_path: Path) -> None:
    path = write(tmp_path, "lr: 0.5\nsimple: {temperature: 0.25}\n")
    config = load_config([path], {"recipe": "cifar100/03", "batch_size": "8"})
    settings, options = config.settings, config.algorithm.model_dump()
    assert (settings.lr, settings.batch_size, settings.steps) == (0.5, 8, 2**20)
    assert settings.recipe == "cifar100/03"
    assert (options["temperature"], options["pair_weight"]) == (0.25, 150)


def test_settings_that_replace_those_of_a_recipe_as_a_whole() -> None:
    config = load_config([], {"recipe": "cifar100/03", "algo": "fixmatch", "num_labels": "400"})
    assert config.settings.algo == "fixmatch"
    assert (config.settings.num_labels, config.settings.labels_per_class) == (400, None)
    own = load_config([], {"recipe": "cifar100/03", "data": "images"}).settings
    assert (own.data, own.dataset, own.backbone) == ("images", None, "wrn_28_2")


def test_scale_shortens_all_that_is_in_steps(tmp_path: Path) -> None:
    flags = {"recipe": "cifar100/03", "scale": "0.001"}
    sets = ["schedule.warmup_steps=7"]
    config = load_config([], flags, sets)
    settings = config.settings
    assert (settings.steps, settings.eval_every, settings.log_every) == (1049, 1, 1)
    assert settings.schedule.warmup_steps == 7  # of the user
    assert settings.batch_size == 64
    path = write(tmp_path, FILE)
    again = validate([Layer(str(path), resolve_config(config)[0].tree())]).settings
    assert again.steps == 1049  # not shortened twice
    assert again.scale == 0.001


def test_scale_shortens_options_of_the_algorithm() -> None:
    config = load_config(
        [], {"recipe": "cifar100/03", "scale": "0.5", "algo": "deep_label_propagation"}
    )
    assert config.algorithm.model_dump()["scan_interval"] == 25


def test_scale_needs_a_recipe() -> None:
    with pytest.raises(ConfigError, match=r"^--scale: shortens a recipe; add --recipe ROW"):
        load_config([], {"scale": "0.5"})
    with pytest.raises(ConfigError, match=r"--scale: must be at most 1"):
        load_config([], {"recipe": "cifar100/03", "scale": "2"})


def test_an_unknown_recipe_is_refused_with_a_near_name() -> None:
    with pytest.raises(ConfigError, match=r"--recipe cifar100/3: not found .*'cifar100/03'"):
        load_config([], {"recipe": "cifar100/3"})


def test_no_recipe() -> None:
    assert load_config([], {"recipe": "none"}).settings.recipe is None


def test_a_recipe_describes_itself() -> None:
    text = find_recipe("cifar100/03").describe(0.5)
    assert text.startswith("recipe cifar100/03 at scale 0.5: CIFAR-100")
    assert "SimPLE" in text
    assert len({recipe.id for recipe in load_recipes().values()}) == len(load_recipes())


def test_settings_that_count_steps_are_shortened() -> None:
    models: list[type[Options]] = [Settings]
    models += [registry.load("algorithms", entry.name).Config
               for entry in registry.entries("algorithms") if entry.built_in]  # fmt: skip
    fields = [item for model in models for item in fields_of(model)]
    counted = {name for name, field in fields if is_in_steps(field)}
    assert counted >= {"steps", "eval_every", "schedule.warmup_steps", "rampup_steps"}
    others = {"optimizer.accumulation_steps", "keep_checkpoints"}
    for name, field in fields:
        ends = ("steps", "_every", "interval")
        if name.endswith(ends) or "number of steps" in (field.description or ""):
            assert is_in_steps(field) or name in others, name
