"""What a run with a recipe says and records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_files import accept_tiny_files, write_cifar100, write_domainnet_real
from in_process import call

from ssl_toolkit import train
from ssl_toolkit.config import yaml
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.errors import ConfigError

AUTOMATIC = {
    "algo": "simple",
    "backbone": "resnet50",
    "pretrained": True,
    "dataset": "domainnet_real",
}


def test_settings_choose_the_transfer_recipe_of_the_paper() -> None:
    settings = load_config([], AUTOMATIC | {"pretrained": "true"}).settings
    assert settings.recipe == "transfer_domainnet_real/04"
    assert (settings.optimizer.backbone_lr, settings.model.freeze) == (2e-5, "none")
    assert load_config([], AUTOMATIC | {"algo": "mixmatch"}).settings.recipe == (
        "transfer_domainnet_real/02"
    )
    for change in (
        {"recipe": "none"},
        {"algo": "fixmatch"},
        {"backbone": "resnet18"},
        {"dataset": None, "data": "images"},
        {"pretrained": None},
    ):
        settings = load_config([], AUTOMATIC | change).settings
        assert settings.recipe is None, change
        assert settings.steps != 1024 * 1024


def test_settings_of_files_choose_it_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.dump(AUTOMATIC))
    assert load_config([file]).settings.recipe == "transfer_domainnet_real/04"
    file.write_text(yaml.dump(AUTOMATIC | {"recipe": None}))
    assert load_config([file]).settings.recipe is None


def test_a_dry_run_prints_the_settings_and_the_recipe() -> None:
    flags = ["--algo", "simple", "--backbone", "resnet50", "--pretrained"]
    result = call("run", *flags, "--dataset", "domainnet_real", "--dry-run")
    assert "recipe: transfer_domainnet_real/04\n" in result.stdout
    assert "unsupervised_weight: 300.0" in result.stdout
    (line,) = [
        line for line in (result.stdout + result.stderr).splitlines() if line.startswith("# recipe")
    ]
    assert line.endswith("(--recipe none turns it off)")
    quoted = call("run", "--recipe", "cifar100/06", "--scale", "0.5", "--dry-run")
    assert "steps: 524288\n" in quoted.stdout
    assert "# recipe cifar100/06 at scale 0.5: CIFAR-100" in (quoted.stdout + quoted.stderr)


def test_a_run_records_recipe_and_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_tiny_files(monkeypatch)
    write_cifar100(tmp_path, 40, 10)
    folder = tmp_path / "run"
    flags = ["--backbone", "wrn_10_1", "--labels-per-class", 2, "--batch-size", 4]
    result = call(
        "run", "--recipe", "cifar100/02", "--scale", "2e-6", *flags, "--root", tmp_path,
        "--output", folder, "--device", "cpu",
    )  # fmt: skip
    name = "cifar100/02 at scale 2e-06"
    assert f"recipe {name}: CIFAR-100" in (result.stdout + result.stderr)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["recipe"], summary["scale"], summary["steps"]) == ("cifar100/02", 2e-6, 2)
    assert f"recipe | {name}" in (folder / "model" / "README.md").read_text()
    again = load_config([folder / "config.yaml"]).settings
    assert (again.recipe, again.scale, again.steps) == ("cifar100/02", 2e-6, 2)
    assert f"recipe {name}: all runs" in call("report", folder).stdout


def test_a_row_that_needs_weights_says_which(tmp_path: Path) -> None:
    write_domainnet_real(tmp_path)
    message = r"starts from the weights of transfer_mini_imagenet/pretrain, which are missing"
    with pytest.raises(ConfigError, match=message):
        train({"recipe": "transfer_mini_imagenet/03", "root": str(tmp_path)})
