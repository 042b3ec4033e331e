"""Several numbers of labels: the rows of a label curve, and what contradicts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ssl_toolkit import ConfigError
from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparison import ComparisonConfig, allowed_keys, load_comparison


def load(*sweeps: str, **flags: Any) -> ComparisonConfig:
    return load_comparison([], {"algos": "simple,supervised"} | flags, (), sweeps)


def labels_of(comparison: ComparisonConfig) -> list[tuple[Any, ...]]:
    settings = [row.config.settings for row in comparison.rows]
    return [(one.algo, one.labels_per_class, one.num_labels) for one in settings]


@pytest.mark.parametrize("given", ["4,1", [1, 4], ["4", "1"]])
def test_numbers_multiply_the_rows_in_ascending_order(given: Any) -> None:
    comparison = load(labels_per_class=given)
    assert labels_of(comparison) == [
        ("simple", 1, None),
        ("supervised", 1, None),
        ("simple", 4, None),
        ("supervised", 4, None),
    ]
    assert [row.name for row in comparison.rows][:3] == [
        "simple, 1 per class",
        "supervised, 1 per class",
        "simple, 4 per class",
    ]
    assert comparison.rows[0].slug == "simple_1_per_class"
    assert [row.labels for row in comparison.rows] == [1, 1, 4, 4]
    assert comparison.baseline == "supervised"
    assert allowed_keys(comparison.settings, comparison.rows) == {"labels_per_class"}


def test_totals_replace_the_number_per_class_of_a_recipe() -> None:
    recipe = {"recipe": "usb_cifar100/labels400-fixmatch", "algos": "fixmatch"}
    assert load(**recipe).rows[0].config.settings.labels_per_class is not None
    comparison = load(num_labels="400,800", **recipe)
    assert labels_of(comparison) == [("fixmatch", None, 400), ("fixmatch", None, 800)]


def test_totals_have_their_own_names() -> None:
    comparison = load(num_labels="20,40")
    assert labels_of(comparison)[2:] == [("simple", None, 40), ("supervised", None, 40)]
    assert comparison.rows[0].name == "simple, 20 labels"


@pytest.mark.parametrize("given", [4, "4", [4]])
def test_one_number_leaves_the_rows_as_they_are(given: Any) -> None:
    comparison = load(labels_per_class=given)
    assert [row.name for row in comparison.rows] == ["simple", "supervised"]
    assert labels_of(comparison) == [("simple", 4, None), ("supervised", 4, None)]
    assert comparison.settings.curve is None
    assert allowed_keys(comparison.settings, comparison.rows) == set()


def test_a_flag_replaces_the_numbers_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "curve.yaml"
    path.write_text("algos: simple\nlabels_per_class: [1, 2]\n", encoding="utf-8")
    assert [row.labels for row in load_comparison([path], {}).rows] == [1, 2]
    (row,) = load_comparison([path], {"labels_per_class": "4"}).rows
    assert row.config.settings.labels_per_class == 4


def test_the_tree_gives_the_comparison_back(tmp_path: Path) -> None:
    comparison = load(labels_per_class="1,4", seeds="0", baseline="simple")
    path = tmp_path / "comparison.yaml"
    yaml.write(path, comparison.tree)
    again = load_comparison([path])
    assert [row.name for row in again.rows] == [row.name for row in comparison.rows]
    assert again.baseline == "simple"


def test_the_linear_probe_has_a_row_for_each_number() -> None:
    comparison = load(algos="fixmatch", pretrained=True, labels_per_class="1,2")
    assert [row.method for row in comparison.rows] == ["fixmatch", "linear_probe"] * 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"labels_per_class": "0,1"}, "must be at least 1 (given '0')"),
        ({"labels_per_class": "2,2"}, "2 is given twice"),
        ({"labels_per_class": "1,many"}, "must be an integer (given 'many')"),
        ({"labels_per_class": ""}, "must not be empty"),
        ({"labels_per_class": "1,2", "num_labels": "20"}, "leave one of them out"),
        ({"labels_per_class": "1,2", "labels": "some.csv"}, "labels: can't be used with several"),
        ({"labels_per_class": "1,2", "split": "split.json"}, "split: can't be used with several"),
        (
            {"labels_per_class": "1,2", "baseline": "simple, 1 per class"},
            "rows: simple, supervised",
        ),
        (
            {"num_labels": "20,40", "rows": {"mine": {"algo": "simple", "labels_per_class": 2}}},
            "rows.mine: labels_per_class: can't be used with several numbers of --num-labels",
        ),
    ],
)
def test_contradictions_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**flags)
    (line,) = caught.value.messages
    assert message in line


def test_a_sweep_over_labels_contradicts_a_curve() -> None:
    with pytest.raises(ConfigError, match="sweep: num_labels: can't be used"):
        load("num_labels=20,40", labels_per_class="1,2")
