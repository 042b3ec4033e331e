"""What `list --verbose` and `show` say of an algorithm: derived from its class, in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from in_process import call

from ssl_toolkit import Algorithm, Batch, Context, StepOutput, TaskInfo, View, Views, registry
from ssl_toolkit.commands.list import algorithm_facts

BUILT_IN = [entry.name for entry in registry.entries("algorithms") if entry.built_in]


@pytest.fixture(scope="module")
def listed() -> dict[str, dict[str, Any]]:
    rows = json.loads(call("list", "algorithms", "--verbose", "--json").stdout)
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_is_described(name: str, listed: dict[str, dict[str, Any]]) -> None:
    row = listed[name]
    assert row["family"]
    assert row["needs"]
    assert (row["views_per_labeled_image"] is None) == (row["needs"] == "frozen features")
    assert row["bytes_per_unlabeled_image"] is not None
    assert "\n" not in row["facts"]


def test_facts_follow_from_the_class(listed: dict[str, dict[str, Any]]) -> None:
    assert listed["fixmatch"]["views_per_labeled_image"] == 1 + 7 * (1 + 1)
    assert listed["fixmatch"]["bytes_per_unlabeled_image"] == 0
    assert listed["flexmatch"]["bytes_per_unlabeled_image"] == 8
    assert listed["supervised"]["needs"] == "labels"
    assert listed["fully_supervised"]["needs"] == "hidden labels"
    assert listed["uda"]["facts"] == (
        "thresholds; needs unlabeled images; 15 views per labeled image; "
        "Train strong views on the sharpened predictions for confident weak views."
    )


def test_list_and_show_print_the_same_line(listed: dict[str, dict[str, Any]]) -> None:
    line = listed["flexmatch"]["facts"]
    assert line in call("list", "algorithms", "--verbose").stdout
    assert line in call("show", "flexmatch").stdout
    assert "thresholds" not in call("list", "algorithms").stdout


class Plain(Algorithm):
    """Remember a number per image."""

    def __init__(self, config: Any, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.register_buffer("memory", torch.zeros(task.unlabeled_count))

    def views(self) -> Views:
        """Return one labeled view."""
        return Views()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Fail."""
        raise NotImplementedError


def test_a_plugin_needs_to_declare_nothing() -> None:
    assert algorithm_facts(Plain) == {
        "family": "",
        "needs": "labels",
        "views_per_labeled_image": 1,
        "bytes_per_unlabeled_image": 4,
        "facts": "needs labels; 1 view per labeled image; 4 bytes per unlabeled image; "
        "Remember a number per image.",
    }


def test_code_that_fails_leaves_its_facts_out() -> None:
    class Fails(Plain):
        def views(self) -> Views:
            raise RuntimeError("no views")

    facts = algorithm_facts(Fails)
    assert facts["views_per_labeled_image"] is None
    assert facts["needs"] == facts["facts"] == ""


def test_declared_views_count_too() -> None:
    extra = {"medium": View("unlabeled", "weak", count=2), "crop": View("labeled", "plain")}
    assert Views(unlabeled_weak=1, unlabeled_ratio=7, extra=extra).per_labeled_image == 23
