"""From files, flags and sweeps to the rows of a comparison: what is equal, what may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ssl_toolkit import ConfigError, PluginError, registry
from ssl_toolkit.comparisons.comparability import differences
from ssl_toolkit.config import yaml
from ssl_toolkit.config.comparison import (
    ComparisonConfig,
    allowed_keys,
    load_comparison,
    parse_budget,
)
from ssl_toolkit.config.settings import shared_keys


def load(*sweeps: str, sets: tuple[str, ...] = (), **flags: Any) -> ComparisonConfig:
    return load_comparison([], flags, sets, sweeps)


def from_file(path: Path, text: str, **flags: Any) -> ComparisonConfig:
    path.write_text(text, encoding="utf-8")
    return load_comparison([path], flags)


def names(comparison: ComparisonConfig) -> list[str]:
    return [row.name for row in comparison.rows]


def test_algorithms_become_rows_that_share_everything_else() -> None:
    comparison = load(algos="simple,fixmatch , supervised", seeds="0,2", steps="70", lr="1e-3")
    assert names(comparison) == ["simple", "fixmatch", "supervised"]
    assert comparison.settings.seeds == [0, 2]
    assert comparison.baseline == "supervised"
    shared = [shared_keys(row.config.tree(), row.config.section) for row in comparison.rows]
    assert shared[0] == shared[1] == shared[2]
    assert shared[0]["steps"] == 70
    assert shared[0]["lr"] == 0.001
    assert not {"algo", "seed", "simple", "output"} & {key.split(".")[0] for key in shared[0]}


def test_an_option_of_one_algorithm_affects_only_that_algorithm() -> None:
    comparison = load(algos="simple,fixmatch", sets=("simple.pair_weight=3",))
    simple, fixmatch = (row.config.tree() for row in comparison.rows)
    assert simple["simple"]["pair_weight"] == 3
    assert "simple" not in fixmatch


def test_without_supervised_the_first_row_is_the_baseline() -> None:
    assert load(algos="simple,fixmatch").baseline == "simple"
    assert load(algos="simple,fixmatch", baseline="fixmatch").baseline == "fixmatch"


def test_a_sweep_multiplies_the_rows_of_its_algorithm() -> None:
    comparison = load(
        "simple.similarity_threshold=0.7,0.9", "simple.pair_weight=0,75", algos="simple,supervised"
    )
    assert names(comparison) == [
        "simple similarity_threshold=0.7 pair_weight=0",
        "simple similarity_threshold=0.7 pair_weight=75",
        "simple similarity_threshold=0.9 pair_weight=0",
        "simple similarity_threshold=0.9 pair_weight=75",
        "supervised",
    ]
    tree = comparison.rows[1].config.tree()
    assert (tree["simple"]["similarity_threshold"], tree["simple"]["pair_weight"]) == (0.7, 75)
    assert allowed_keys(comparison.settings, comparison.rows) == set()


def test_a_sweep_over_a_shared_key_concerns_every_row_and_is_marked() -> None:
    comparison = load("lr=0.001,0.01", algos="simple,supervised")
    assert names(comparison) == [
        "simple lr=0.001",
        "simple lr=0.01",
        "supervised lr=0.001",
        "supervised lr=0.01",
    ]
    keys = {row.name: shared_keys(row.config.tree(), row.config.section) for row in comparison.rows}
    different, messages = differences(keys, allowed_keys(comparison.settings, comparison.rows))
    assert messages == []
    assert different["supervised lr=0.01"] == {"lr": 0.01}


def test_a_list_in_brackets_can_contain_any_values() -> None:
    comparison = load("simple.rampup_steps=[0, null]", algos="simple")
    assert [row.config.tree()["simple"]["rampup_steps"] for row in comparison.rows] == [0, None]


def test_named_rows_with_options_of_their_own(tmp_path: Path) -> None:
    text = """
algos: [supervised]
rows:
  plain: {algo: simple}
  no pairs: {algo: simple, simple: {pair_weight: 0}}
  short for it: {algo: simple, algorithm: {pair_weight: 1}}
seeds: [3]
"""
    comparison = from_file(tmp_path / "c.yaml", text)
    assert names(comparison) == ["supervised", "plain", "no pairs", "short for it"]
    weights = [row.config.tree()["simple"]["pair_weight"] for row in comparison.rows[1:]]
    assert weights == [None, 0, 1]
    assert [row.slug for row in comparison.rows][2] == "no_pairs"


def test_a_written_comparison_reads_back_the_same(tmp_path: Path) -> None:
    first = load("lr=0.001,0.01", algos="simple", seeds="4", sets=("simple.pair_weight=2",))
    second = from_file(tmp_path / "c.yaml", yaml.dump(first.tree))
    assert [row.config for row in second.rows] == [row.config for row in first.rows]
    assert second.settings == first.settings


def test_a_shared_key_set_for_one_row_is_found(tmp_path: Path) -> None:
    text = "rows:\n  a: {algo: simple}\n  b: {algo: fixmatch, lr: 0.1, ema: {decay: 0.5}}\n"
    comparison = from_file(tmp_path / "c.yaml", text)
    keys = {row.name: shared_keys(row.config.tree(), row.config.section) for row in comparison.rows}
    different, messages = differences(keys, [])
    assert [message.partition(" ")[0] for message in messages] == ["lr", "ema.decay"]
    assert "0.1 in b" in messages[0]
    different, messages = differences(keys, ["lr", "ema"])
    assert messages == []
    assert different == {"a": {"lr": None, "ema.decay": "auto"}, "b": {"lr": 0.1, "ema.decay": 0.5}}


@pytest.mark.parametrize(
    ("flags", "sweeps", "sets", "message"),
    [
        ({}, (), (), "no algorithms to compare"),
        ({"algos": ""}, (), (), "no algorithms to compare"),
        ({"algos": "simple", "seeds": ""}, (), (), "--seeds: must not be empty"),
        ({"algos": "simple,simple"}, (), (), "simple is given twice"),
        ({"algos": "simple"}, (), ("fixmatch.unlabeled_ratio=2",), "fixmatch"),
        ({"algos": "simple"}, ("fixmatch.unlabeled_ratio=1,2",), (), "fixmatch"),
        ({"algos": "simple,fixmatch"}, (), ("algorithm.temperature=1",), "which of"),
        ({"algos": "simple", "baseline": "simpel"}, (), (), "did you mean 'simple'"),
        ({"algos": "simple", "allow_different": ["lrr"]}, (), (), "did you mean 'lr'"),
        ({"algos": "simple", "budget": "epochs=3"}, (), (), "budget"),
        ({"algos": "simple", "seeds": "0,x"}, (), (), "'x' is no seed"),
        ({"algos": "simple", "seed": "1"}, (), (), "seeds: a,b,c"),
        ({"algos": "simple"}, (), ("algo=fixmatch",), "algos: a,b,c"),
        ({"algos": "simple"}, ("simple.temperature",), (), "--sweep"),
        ({"algos": "simple"}, (), ("sweep.lr=3",), "give a list of values"),
        ({"algos": "simple,supervised", "lrr": "1"}, (), (), "did you mean 'lr'"),
        ({"algos": "simple"}, ("simple.temperature=-1,1",), (), "temperature"),
    ],
)
def test_an_invalid_comparison_is_reported(
    flags: dict[str, Any], sweeps: tuple[str, ...], sets: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=r".") as error:
        load(*sweeps, sets=sets, **flags)
    assert message in "\n".join(error.value.messages)
    assert len(set(error.value.messages)) == len(error.value.messages)


def test_an_unknown_algorithm_is_reported_with_a_close_match() -> None:
    with pytest.raises(PluginError, match="did you mean 'simple'"):
        load(algos="simpel,supervised")


def test_rows_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would share a folder"):
        from_file(tmp_path / "c.yaml", "rows: {'a/b': {algo: simple}, 'a:b': {algo: supervised}}")


def test_budgets() -> None:
    assert parse_budget("steps") == ("steps", 0)
    assert parse_budget("images=5000") == ("images", 5000)
    comparison = load(algos="simple,supervised", budget="minutes=1.5")
    assert "steps" in allowed_keys(comparison.settings, comparison.rows)


@pytest.mark.parametrize(
    ("given", "seeds"),
    [("0-2", [0, 1, 2]), ("7", [7]), ("5, 0 - 1,9-9", [5, 0, 1, 9]), ("08-010", [8, 9, 10])],
)
def test_seeds_can_be_ranges(given: str, seeds: list[int], tmp_path: Path) -> None:
    assert load(algos="simple", seeds=given).settings.seeds == seeds
    text = f"algos: [simple]\nseeds: [{given}]\n"
    assert from_file(tmp_path / "c.yaml", text).settings.seeds == seeds


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0,0", "--seeds: 0 is given twice"),
        ("0-3,2", "seeds: 2 is given twice"),
        ("1,01", "seeds: 1 is given twice"),
        ("2-0", "seeds: 2-0 is no range of seeds; write the smaller one first"),
        ("0-99999999999", "seeds: 0-99999999999 is no range"),
        ("0-", "seeds: '0-' is no seed; write whole numbers from 0 and ranges"),
        ("-1", "seeds: '-1' is no seed"),
        ("0,x{", "seeds: 'x{' is no seed"),
        ("", "--seeds: must not be empty"),
    ],
)
def test_wrong_seeds_are_refused(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load(algos="simple", seeds=given)
    assert len(error.value.messages) == 1


def test_a_value_swept_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sweep.lr: 0.1 is given twice"):
        load("lr=0.1,0.2,0.1", algos="simple")


MANY = "algos: [supervised, mixmatch, fixmatch]\nrows: {mine: {algo: simple, %s}}\n"


def differing_keys(comparison: ComparisonConfig) -> tuple[dict[str, dict[str, Any]], list[str]]:
    keys = {row.name: shared_keys(row.config.tree(), row.config.section) for row in comparison.rows}
    return differences(keys, allowed_keys(comparison.settings, comparison.rows))


def test_a_difference_names_only_the_rows_that_differ(tmp_path: Path) -> None:
    other = MANY % "augment: {strong: fixed}, lr: 0.5"
    _, messages = differing_keys(from_file(tmp_path / "c.yaml", other))
    assert messages == [
        "lr differs between rows that are compared: 0.5 in mine; None in the 3 others",
        "augment.strong differs between rows that are compared: 'fixed' in mine; 'randaugment' in "
        "the 3 others (and so do its options)",
    ]
    rows = {f"r{n}": {"key": "x" * 200 if n == 3 else n % 2} for n in range(30)}
    (message,) = differences(rows, ())[1]
    assert message.startswith("key differs between rows that are compared: 'xxx")
    assert message.endswith("… in r3, 1 in r1, r5, r7, r9 and 10 more; 0 in the 15 others")
    assert len(message) < 200
    (message,) = differences({f"r{n}": {"key": n} for n in range(30)}, ())[1]
    assert message.endswith("0 in r0, 1 in r1, 2 in r2, 3 in r3 and 26 more")


def test_the_options_of_an_augmenter_follow_its_name(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    different, messages = differing_keys(
        from_file(path, MANY % "augment: {strong: fixed}", allow_different=["augment.strong"])
    )
    assert messages == []
    assert different["mine"]["augment.strong"] == "fixed"
    options = set(registry.load("augmenters", "fixed").Config.model_fields)
    marked = {key.rpartition(".")[2] for key in different["mine"]} - {"strong"}
    assert marked <= options  # not those of the other augmenter, which this row does not have
    swept = load("augment.strong=fixed,randaugment", algos="simple")
    assert differing_keys(swept)[1] == []
    # Options alone are named as they are, and the name of the weak one permits none of the strong.
    text = MANY % "augment: {strong_options: {num_ops: 1}}"
    _, messages = differing_keys(from_file(path, text, allow_different=["augment.weak"]))
    assert [message.partition(" ")[0] for message in messages] == ["augment.strong_options.num_ops"]


def test_the_files_in_the_docs_are_comparisons(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/comparing.md").read_text("utf-8")
    examples = text.split("```yaml\n")[1:]
    assert len(examples) == 2
    for example in examples:
        comparison = from_file(tmp_path / "c.yaml", example.split("```")[0])
        assert differing_keys(comparison)[1] == []
        assert len(comparison.rows) == 3
