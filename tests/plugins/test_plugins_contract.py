"""Every plugin of ours keeps its contract: a test for each plugin and rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ssl_toolkit import registry
from ssl_toolkit.testing import parametrize_with_checks

NEEDS_MORE = {"ray", "slurm", "wandb", "mlflow"}
"""Launchers and loggers of other systems, whose rules take minutes; tests of their own see them."""
NEEDS_FILES = {
    "cifar10", "cifar100", "svhn", "stl10", "mini_imagenet", "domainnet_real", "eurosat",
    "tissuemnist", "semi_aves", "torchvision",
}  # fmt: skip
LARGE = {"wrn_28_2", "wrn_28_8"}
"""Further sizes of a class that is checked in two."""


def names(group: str) -> list[str]:
    """Of our plugins, but those that are left out above."""
    left_out = NEEDS_MORE | NEEDS_FILES | LARGE
    known = {entry.name for entry in registry.entries(group) if entry.built_in}
    return sorted(known - left_out)


@parametrize_with_checks(names("algorithms"), kind="algorithm")
def test_algorithms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(names("addons"), kind="addon")
def test_add_ons(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(names("augmenters"), kind="augmenter")
def test_augmenters(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks([*names("backbones"), "timm:test_resnet"], kind="backbone")
def test_backbones(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(names("datasets"), kind="dataset")
def test_data_sets(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(names("launchers"), kind="launcher")
def test_launchers(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(names("loggers"), kind="logger")
def test_loggers(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("group", registry.GROUPS)
def test_nothing_else_is_left_out(group: str) -> None:
    known = {entry.name for entry in registry.entries(group) if entry.built_in}
    assert known
    assert names(group)
    left_out = known - {*names(group)}
    assert left_out <= NEEDS_MORE | NEEDS_FILES | LARGE
