"""From run folders to a comparison: what is read, what is refused, what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_plan, fake_run

from ssl_toolkit.comparisons.discover import loose_runs
from ssl_toolkit.comparisons.gather import gather, gather_plan
from ssl_toolkit.comparisons.schema import (
    ComparedRun,
    Comparison,
    RunLocation,
    read_failures,
    read_plan,
)
from ssl_toolkit.errors import ConfigError, ModelError


def two_rows(folder: Path, seeds: tuple[int, ...] = (0, 1), **second: Any) -> list[RunLocation]:
    """``plain`` and ``other`` over the seeds; `second` changes the latter's files."""
    made = []
    for row, algo, changes in (("plain", "supervised", {}), ("other", "fixmatch", second)):
        for seed in seeds:
            path = fake_run(folder / f"{row}{seed}", algo=algo, seed=seed, **changes)
            made.append(RunLocation(row, seed, path))
    return made


def gathered(runs: list[RunLocation], **arguments: Any) -> Comparison:
    return gather(runs, name="toy", **arguments)


def gather_folder(folder: Path) -> Comparison:
    return gather_plan(read_plan(folder), folder, read_failures(folder))


def refused(runs: list[RunLocation], **arguments: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        gathered(runs, **arguments)
    return caught.value.messages


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


# --- scores -------------------------------------------------------------------------------------


def test_rows_have_the_scores_of_their_runs(tmp_path: Path) -> None:
    runs = two_rows(tmp_path, options={"confidence_threshold": 0.95})
    edit(tmp_path / "other1" / "summary.json", convergence_step=None)
    made = gathered(runs, baseline="plain")
    plain, other = made.rows
    assert (plain.name, plain.algorithm, other.name) == ("plain", "supervised", "other")
    assert made.seeds == (0, 1)
    assert plain.scores["test.accuracy"].values == {0: 0.9, 1: 0.9}
    assert plain.scores["seconds"].values == {0: 10, 1: 11}
    assert other.scores["convergence_step"].values == {0: 50}
    assert plain.difference is None
    assert other.difference is not None
    assert other.difference.mean == 0
    assert made.fingerprint == json.loads((runs[0][2] / "record.json").read_text())["fingerprint"]
    assert made.shared["ema.decay"] == "0.9"
    assert not {"algo", "seed", "output", "workers"} & made.shared.keys()
    assert made.notes == ()


def test_p_values_are_adjusted_for_the_rows_that_have_one(tmp_path: Path) -> None:
    runs = []
    for row, gains in {"base": (0, 0, 0), "a": (1, 2, 4), "b": (2, 2.5, 3)}.items():
        for seed, gain in enumerate(gains):
            path = fake_run(tmp_path / f"{row}{seed}", seed=seed, accuracy=0.5 + gain / 100)
            runs.append(RunLocation(row, seed, path))
    base, a, b = gathered(runs, baseline="base").rows
    assert base.difference is None
    assert a.difference is not None
    assert b.difference is not None
    assert a.difference.p_value is not None
    assert b.difference.p_value is not None
    assert b.difference.p_value < a.difference.p_value
    assert b.difference.adjusted_p_value == pytest.approx(2 * b.difference.p_value)
    assert a.difference.adjusted_p_value == pytest.approx(a.difference.p_value)


def test_an_algorithm_with_hidden_labels_is_marked(tmp_path: Path) -> None:
    runs = [
        RunLocation("bound", 0, fake_run(tmp_path / "a", algo="fully_supervised")),
        RunLocation("plain", 0, fake_run(tmp_path / "b")),
        RunLocation("gone", 0, fake_run(tmp_path / "c", algo="not_installed")),
        RunLocation(
            "said",
            0,
            fake_run(tmp_path / "d", algo="not_installed", record={"uses_hidden_labels": True}),
        ),
    ]
    assert [row.uses_hidden_labels for row in gathered(runs).rows] == [True, False, False, True]


def test_the_baseline_is_a_row(tmp_path: Path) -> None:
    (message,) = refused(two_rows(tmp_path), baseline="plane")
    assert "did you mean 'plain'" in message
    assert "rows: plain, other" in message


# --- what is refused ----------------------------------------------------------------------------


def test_every_differing_key_is_named_in_one_error(tmp_path: Path) -> None:
    runs = two_rows(tmp_path, config={"lr": 0.01, "ema": {"decay": 0.5}, "workers": 4})
    messages = refused(runs)
    assert len(messages) == 2
    assert messages[0].startswith("lr ")
    assert messages[1].startswith("ema.decay ")
    for value in ("'0.002' in plain", "'0.01' in other", "--allow-different"):
        assert value in messages[0]


def test_rows_of_different_seeds_are_noted(tmp_path: Path) -> None:
    _, *runs = two_rows(tmp_path)
    (note,) = gathered(runs, baseline="plain").notes
    assert note == "rows have means over different seeds, differences are over the common ones"


def test_a_permitted_key_is_marked(tmp_path: Path) -> None:
    runs = two_rows(tmp_path, config={"lr": 0.01, "ema": {"decay": 0.5}})
    made = gathered(runs, allow=["lr", "ema"])
    assert made.rows[0].overrides == {"lr": "0.002", "ema.decay": "0.9"}
    assert made.rows[1].overrides == {"lr": "0.01", "ema.decay": "0.5"}
    assert not {"lr", "ema.decay"} & made.shared.keys()
    own = {json.loads((path / "record.json").read_text())["fingerprint"] for _, _, path, *_ in runs}
    assert len(own) == 2
    assert made.fingerprint not in {*own, ""}
    (message,) = refused(runs, allow=["lr"])
    assert message.startswith("ema.decay ")


def test_seeds_of_a_row_have_one_configuration(tmp_path: Path) -> None:
    runs = [
        RunLocation("plain", seed, fake_run(tmp_path / f"{seed}", seed=seed, config={"lr": lr}))
        for seed, lr in enumerate((0.1, 0.2))
    ]
    (message,) = refused(runs)
    assert message.startswith("lr differs between the seeds of plain: 0.1 (seed 0), 0.2 (seed 1)")
    made = gathered(runs, allow=["lr"])
    assert made.rows[0].overrides == {"lr": "0.1 (seed 0), 0.2 (seed 1)"}
    assert "lr" not in made.shared


def test_seeds_of_a_row_have_one_algorithm(tmp_path: Path) -> None:
    runs = [
        RunLocation("plain", 0, fake_run(tmp_path / "a", options={"weight": 1})),
        RunLocation("plain", 1, fake_run(tmp_path / "b", options={"weight": 2}, seed=1)),
    ]
    (message,) = refused(runs, allow=["weight", "supervised"])
    assert "supervised.weight differs between the seeds of plain" in message


@pytest.mark.parametrize("key", ["split", "initial_weights"])
def test_a_seed_has_one_split_and_one_start(tmp_path: Path, key: str) -> None:
    runs = two_rows(tmp_path)
    edit(tmp_path / "other1" / "record.json", **{key: "another"})
    (message,) = refused(runs, allow=[key, "seed"])
    assert message.startswith(f"{key.replace('_', ' ')} of seed 1 must be the same")
    assert "another in other" in message


@pytest.mark.parametrize("name", ["data", "strangers", "weights file"])
def test_an_input_has_the_same_content_for_all_seeds(tmp_path: Path, name: str) -> None:
    runs = two_rows(tmp_path, record={"inputs": {name: "one"}})
    edit(tmp_path / "plain0" / "record.json", inputs={name: "one"})
    assert len(gathered(runs).rows) == 2  # the other seed of the row is older, and has none
    edit(tmp_path / "plain1" / "record.json", inputs={name: "two"})
    (message,) = refused(runs, allow=["labels_per_class"])
    assert message.startswith(f"{name} must be the same in all rows and for all seeds")
    assert "one in plain (seed 0), other; two in plain (seed 1)" in message


def test_strangers_can_depend_on_an_allowed_key(tmp_path: Path) -> None:
    inputs = {"data": "one", "strangers": "many"}
    changes = {"config": {"strangers": {"data": "more"}}, "record": {"inputs": inputs}}
    runs = two_rows(tmp_path, **changes)
    for seed in (0, 1):
        edit(tmp_path / f"plain{seed}" / "record.json", inputs=inputs | {"strangers": "few"})
    assert len(gathered(runs, allow=["strangers"]).rows) == 2
    edit(tmp_path / "plain1" / "record.json", inputs={"data": "two"})
    (message,) = refused(runs, allow=["strangers"])
    assert message.startswith("data must be the same")


def test_a_split_can_depend_on_an_allowed_key(tmp_path: Path) -> None:
    runs = two_rows(tmp_path, config={"labels_per_class": 10}, record={"split": "larger"})
    assert gathered(runs, allow=["labels_per_class"]).rows[1].overrides == {
        "labels_per_class": "10"
    }
    third = fake_run(tmp_path / "third", algo="simple", config={"labels_per_class": 10})
    messages = refused([*runs, RunLocation("third", 0, third)], allow=["labels_per_class"])
    assert len(messages) == 1
    assert "larger in other; split0 in third" in messages[0]


def test_runs_without_a_weight_hash_are_not_compared_with_others(tmp_path: Path) -> None:
    runs = two_rows(tmp_path, record={"initial_weights": None})
    assert len(gathered(runs).rows) == 2


def test_draws_that_two_rows_share_are_equal(tmp_path: Path) -> None:
    runs = two_rows(tmp_path, record={"draws": {"labeled_weak": "a", "unlabeled_weak": "b"}})
    assert len(gathered(runs).rows) == 2  # the other row is older, and has none
    for seed in (0, 1):
        edit(tmp_path / f"plain{seed}" / "record.json", draws={"labeled_weak": "a"})
    assert len(gathered(runs).rows) == 2
    edit(tmp_path / "plain1" / "record.json", draws={"labeled_weak": "another"})
    (message,) = refused(runs, allow=["augment.strong"])
    assert message.startswith("draws of labeled_weak of seed 1 must be the same in all rows")
    assert "another in plain; a in other" in message
    assert "ssl-toolkit check" in message


def test_draws_can_depend_on_an_allowed_key(tmp_path: Path) -> None:
    augment = {"augment": {"strong_options": {"num_ops": 1}}}
    runs = two_rows(tmp_path, record={"draws": {"unlabeled_strong": "one"}}, config=augment)
    for seed in (0, 1):
        edit(tmp_path / f"plain{seed}" / "record.json", draws={"unlabeled_strong": "two"})
    assert len(gathered(runs, allow=["augment"]).rows) == 2


def test_classes_are_the_same_in_the_same_order(tmp_path: Path) -> None:
    (message,) = refused(two_rows(tmp_path, summary={"classes": ["b", "a"]}))
    assert message.startswith("classes must be the same")
    assert "a, b in plain; b, a in other" in message


def test_one_row_and_seed_is_one_run(tmp_path: Path) -> None:
    result = [RunLocation("plain", 0, fake_run(tmp_path / name)) for name in "ab"]
    (message,) = refused(result)
    assert "both plain with seed 0" in message


# --- runs without results -----------------------------------------------------------------------


def test_runs_without_results_have_a_status_and_are_in_no_mean(tmp_path: Path) -> None:
    result = two_rows(tmp_path, seeds=(0, 1, 2))
    edit(tmp_path / "other1" / "summary.json", status="failed", reason="loss was\nnan", test=None)
    edit(tmp_path / "plain2" / "summary.json", status="interrupted", reason="SIGINT", test=None)
    result += [
        RunLocation("plain", 3, tmp_path / "nowhere"),
        RunLocation("other", 3, tmp_path / "neither"),
    ]
    made = gathered(result, baseline="plain", failures={"other": {3: "no space left"}})
    plain, other = made.rows
    assert [member.status for member in plain.runs] == [
        "completed", "completed", "interrupted", "missing",
    ]  # fmt: skip
    assert other.runs[1].status == "failed"
    assert other.runs[1].reason == "loss was nan"
    assert (other.runs[3].status, other.runs[3].reason) == ("failed", "no space left")
    assert other.scores["test.accuracy"].values.keys() == {0, 2}
    assert other.difference is not None
    assert other.difference.values.keys() == {0}
    assert made.notes[0].startswith("4 of 8 runs have no results")
    assert "different seeds" in made.notes[0]


def test_rows_without_any_run_folder(tmp_path: Path) -> None:
    made = gathered([RunLocation("plain", 0, tmp_path / "a", "x")], baseline="plain")
    assert made.rows[0].scores == {}
    assert made.rows[0].algorithm == "x"
    assert made.fingerprint == ""


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("summary.json", "{", "damaged"),
        ("summary.json", "[]", "not a JSON object"),
        ("summary.json", '{"format": 1, "status": "weird"}', "damaged: status:"),
        ("summary.json", '{"format": 2}', "unknown format 2"),
        ("summary.json", '{"format": 1, "status": "completed"}', "Field required"),
        ("record.json", "", "record.json: damaged or not readable"),
        ("record.json", "{}", "no format number"),
        ("record.json", '{"format": 1}', "Field required"),
        ("config.yaml", "a: [", "config.yaml"),
        ("config.yaml", "{}", "not that of a run"),
    ],
)
def test_a_damaged_run_fails_the_check(tmp_path: Path, file: str, text: str, message: str) -> None:
    path = fake_run(tmp_path / "run")
    (path / file).write_text(text, encoding="utf-8")
    member = ComparedRun.read("plain", 0, path)
    assert member.status == "failed"
    assert message in member.reason
    assert str(tmp_path) not in member.reason
    assert gathered([RunLocation("plain", 0, path)]).rows[0].scores == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "0.9", True])
def test_a_score_that_is_not_a_number_is_missing(tmp_path: Path, value: Any) -> None:
    path = fake_run(tmp_path / "run")
    scores = json.loads((path / "summary.json").read_text("utf-8"))["test"]
    edit(path / "summary.json", test=scores | {"accuracy": value})
    member = ComparedRun.read("plain", 0, path)
    assert member.status == "failed"
    assert "damaged: test.accuracy:" in member.reason


def test_a_run_of_another_seed_fails_the_check(tmp_path: Path) -> None:
    assert "seed 1" in ComparedRun.read("plain", 1, fake_run(tmp_path / "run", seed=0)).reason


def test_a_summary_without_a_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    member = ComparedRun.read("plain", 0, tmp_path / "empty")
    assert (member.status, member.reason) == ("missing", "no summary.json in its folder")


def test_runs_without_a_test_split_are_reported(tmp_path: Path) -> None:
    made = gathered(two_rows(tmp_path, summary={"test": None}), baseline="plain")
    assert made.rows[1].scores["validation.accuracy"].count == 2
    assert "test.accuracy" not in made.rows[1].scores
    assert any("validation accuracy only" in note for note in made.notes)


# --- notes --------------------------------------------------------------------------------------


def test_differing_machines_are_reported(tmp_path: Path) -> None:
    runs = two_rows(tmp_path)
    edit(tmp_path / "other1" / "record.json", torch_threads=2, platform="Mac", precision="bf16")
    for seed in (0, 1):
        edit(tmp_path / f"other{seed}" / "record.json", versions={"torch": "3"}, device="cuda:0")
    notes = gathered(runs).notes
    assert (
        "seconds and images per second are not comparable, devices differ: "
        "cpu in plain; cuda:0 in other"
    ) in notes
    assert (
        "seconds are not comparable, numbers of CPU threads differ: 1 in plain, other (seed 0); "
        "2 in other (seed 1)"
    ) in notes
    assert any("precisions differ" in n and "bf16 in other (seed 1)" in n for n in notes)
    assert "platforms differ: Linux in plain, other (seed 0); Mac in other (seed 1)" in notes
    assert "versions of torch differ: 2.14.1 in plain; 3 in other" in notes
    assert "versions of python differ: 3.11.7 in plain; unknown in other" in notes


def test_versions_that_changed_on_resume_are_reported(tmp_path: Path) -> None:
    runs = two_rows(tmp_path)
    change = {"key": "versions.torch", "before": "2.14.1", "after": "3", "after_step": 5}
    edit(tmp_path / "plain0" / "record.json", changes=[change])
    (note,) = gathered(runs).notes
    assert note == (
        "versions of torch differ: 2.14.1, then 3 in plain (seed 0); "
        "2.14.1 in plain (seed 1), other"
    )
    for name in ("plain1", "other0", "other1"):
        edit(tmp_path / name / "record.json", changes=[change])
    assert gathered(runs).notes == ("versions of torch differ: 2.14.1, then 3 in all runs",)


def test_distributions_of_a_plugin_that_differ_are_reported(tmp_path: Path) -> None:
    runs = two_rows(tmp_path)
    for name in ("plain0", "plain1", "other0", "other1"):
        plugins = {"algorithms: own": "here 1.0", "backbones: resnet18": f"timm {name[-1]}"}
        edit(tmp_path / name / "record.json", plugins=plugins)
    assert gathered(runs).notes == ()  # of timm, the version has a note
    for name in ("other0", "other1"):
        edit(tmp_path / name / "record.json", plugins={"algorithms: own": "here 2.0"})
    expected = "distributions of algorithms: own differ: here 1.0 in plain; here 2.0 in other"
    assert gathered(runs).notes == (expected,)
    edit(tmp_path / "other1" / "record.json", plugins={"algorithms: own": "there 1.0"})
    (note,) = gathered(runs).notes
    assert note == (
        "distributions of algorithms: own differ: here 1.0 in plain; here 2.0 in other (seed 0); "
        "there 1.0 in other (seed 1); the scores of other are of different code"
    )
    key = "plugins.algorithms: own"
    change = {"key": key, "before": "here 1.0", "after": "here 3.0", "after_step": 5}
    edit(tmp_path / "plain0" / "record.json", changes=[change])
    (note,) = gathered(runs[:2]).notes
    assert "here 1.0, then here 3.0 in plain (seed 0); here 1.0 in plain (seed 1)" in note
    assert note.endswith("the scores of plain are of different code")


def test_a_note_says_that_cpu_threads_change_scores(tmp_path: Path) -> None:
    runs = two_rows(tmp_path)
    for seed in (0, 1):
        changed = {"torch_threads": 2, "device": "cpu (2 threads)"}
        edit(tmp_path / f"other{seed}" / "record.json", **changed)
    (note,) = gathered(runs).notes
    assert note == (
        "numbers of CPU threads differ: 1 in plain; 2 in other; that alone changes scores, because "
        "sums are split differently, and seconds"
    )
    # A run that went on with other threads has a part of both.
    moved = {
        "key": "device",
        "before": "cpu (1 threads)",
        "after": "cpu (2 threads)",
        "after_step": 5,
    }
    edit(tmp_path / "plain0" / "record.json", changes=[moved])
    (note,) = gathered(runs[:2]).notes
    assert "differ: 1, then 2 in plain (seed 0); 1 in plain (seed 1); that alone changes" in note


def test_warnings_of_the_runs_are_reported_once(tmp_path: Path) -> None:
    result = two_rows(tmp_path, record={"warnings": ["two images\nare alike"]})
    assert gathered(result).notes == ("other: two images are alike",)
    edit(tmp_path / "plain0" / "record.json", warnings=["two images\nare alike"])
    edit(tmp_path / "plain1" / "record.json", warnings=["two images\nare alike"])
    assert gathered(result).notes == ("all runs: two images are alike",)


# --- where runs are -----------------------------------------------------------------------------


def test_a_comparison_folder_is_gathered_by_its_plan(tmp_path: Path) -> None:
    rows = fake_plan(
        tmp_path, {"plain": "supervised", "other": "fixmatch"}, [0, 1],
        baseline="plain", allow=["lr"], budget="images=3200",
    )  # fmt: skip
    assert read_plan(tmp_path).runs(tmp_path)[3] == RunLocation(
        "other", 1, tmp_path / "runs" / "r1" / "s1", "fixmatch"
    )
    fake_run(rows["plain"] / "s0")
    fake_run(rows["other"] / "s0", algo="fixmatch", config={"lr": 0.5})
    failures = {"other": {"0": "an old reason", "1": "killed"}}
    (tmp_path / "failures.json").write_text(
        json.dumps({"format": 1, "failures": failures}), encoding="utf-8"
    )
    made = gather_folder(tmp_path)
    assert (made.name, made.baseline) == ("toy", "plain")
    assert [member.status for row in made.rows for member in row.runs] == [
        "completed", "missing", "completed", "failed",
    ]  # fmt: skip
    assert made.rows[1].runs[1].reason == "killed"
    budget = "equal for all rows is the budget images=3200, not the number of steps"
    assert made.notes[0] == budget
    (tmp_path / "failures.json").write_text("[1]", encoding="utf-8")
    assert gather_folder(tmp_path).rows[1].runs[1].status == "missing"


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"name": "a"}', '{"format": 1, "rows": [1], "seeds": [0]}']
)
def test_a_damaged_plan(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    with pytest.raises(
        ConfigError,
        match=r"plan\.json: .*compare` command writes it again",
    ):
        gather_folder(tmp_path)


def test_loose_runs_become_rows_by_their_differences(tmp_path: Path) -> None:
    paths = [
        fake_run(tmp_path / "a", algo="simple", options={"pair_weight": 0, "temperature": 0.5}),
        fake_run(tmp_path / "b", algo="simple", options={"pair_weight": 75, "temperature": 0.5}),
        fake_run(
            tmp_path / "c", algo="simple", options={"pair_weight": 0, "temperature": 0.5}, seed=1
        ),
        fake_run(tmp_path / "d", algo="fixmatch"),
    ]
    result = loose_runs(paths)
    assert [run[:3] for run in result] == [
        ("simple pair_weight=0", 0, paths[0]),
        ("simple pair_weight=0", 1, paths[2]),
        ("simple pair_weight=75", 0, paths[1]),
        ("fixmatch", 0, paths[3]),
    ]
    assert {run.algorithm for run in result} == {"simple", "fixmatch"}
    lr = fake_run(tmp_path / "e", algo="fixmatch", config={"lr": 0.5})
    result = loose_runs([paths[3], lr])
    assert [row for row, *_ in result] == ["fixmatch lr=0.002", "fixmatch lr=0.5"]
    with pytest.raises(ConfigError, match="lr differs"):
        gather(result, name="")


def test_loose_folders_that_are_not_runs(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not the folder of a run or of a comparison"):
        loose_runs([tmp_path])
    path = fake_run(tmp_path / "run")
    (path / "config.yaml").write_text("seed: x\nalgo: supervised\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not the configuration of a run"):
        loose_runs([path])
    copy = fake_run(tmp_path / "a"), fake_run(tmp_path / "b")
    with pytest.raises(ConfigError, match="both supervised with seed 0"):
        gather(loose_runs(copy), name="")
