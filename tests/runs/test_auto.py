"""``--algo auto``, and comparisons that carry it and the linear probe."""

from __future__ import annotations

import json
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal
from pretrained_runs import config, flags, keys, make_images

from ssl_toolkit import compare, registry
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.multirun import compare as comparing
from ssl_toolkit.runs import auto
from ssl_toolkit.runs.auto import candidates, choose
from ssl_toolkit.runs.auto_trials import Trial, feature_trial, sign_test
from ssl_toolkit.runs.record import Candidate
from ssl_toolkit.runs.resume import resume


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("auto")
    make_images(made / "images")
    return made


def hits(*given: int) -> np.ndarray:
    return np.array(given, dtype=bool)


# --- the rule -----------------------------------------------------------------------------------


def test_the_sign_test_is_exact() -> None:
    ours, theirs = hits(*[1] * 8, *[0] * 2, 1, 0), hits(*[0] * 8, *[1] * 2, 1, 0)
    assert sign_test(ours, theirs) == sum(comb(10, k) for k in (8, 9, 10)) / 1024
    assert sign_test(theirs, ours) == sum(comb(10, k) for k in range(2, 11)) / 1024
    assert sign_test(ours, ours) == 1.0
    scipy = pytest.importorskip("scipy.stats")
    wanted = scipy.binomtest(8, 10, alternative="greater").pvalue
    assert sign_test(ours, theirs) == pytest.approx(wanted)


def trial(name: str, right: int, of: int = 30) -> Trial:
    return Trial(
        Candidate(name=name, algorithm=name), np.ones(of, dtype=bool), np.arange(of) < right, 1.0
    )


def test_the_preferred_one_is_kept_unless_another_leads_significantly() -> None:
    best, reason = auto._best([trial("first", 20), trial("second", 18)])
    assert (best.name, reason) == ("first", "the default, and no other is better")
    best, reason = auto._best([trial("first", 20), trial("second", 24)])  # p = 1/16
    assert (best.name, reason) == ("first", "the default, and no other is significantly better")
    best, reason = auto._best([trial("first", 20), trial("second", 25), trial("third", 27)])
    assert best.name == "third"
    assert reason == (
        "its accuracy on 30 held-out labels is 90.0 %, that of first 66.7 % (sign test, p = 0.0078)"
    )


def test_candidates_come_by_rank_and_are_no_upper_bounds() -> None:
    result = candidates(pretrained=True)
    names = [candidate.algorithm for candidate in result]
    assert names[0] == "graph_probe"
    assert {"linear_probe", "label_spreading"} <= set(names)
    for tuned in (False, True):  # what is fitted at once comes before what trains the backbone
        ranks = [
            registry.load("algorithms", candidate.algorithm).auto_rank
            for candidate in result
            if candidate.trains_backbone is tuned
        ]
        assert ranks == sorted(ranks, reverse=True)
        assert min(ranks) > 0
    assert [c.trains_backbone for c in result] == sorted(c.trains_backbone for c in result)
    assert "fully_supervised" not in names
    scratch = [candidate.algorithm for candidate in candidates(pretrained=False)]
    assert scratch
    assert not set(scratch) & {"graph_probe", "knn"}
    given = [candidate.algorithm for candidate in candidates(pretrained=True, features=True)]
    assert set(given) < set(names)
    assert not set(given) & {"fixmatch", "simple", "supervised"}


# --- cross-validation ----------------------------------------------------------------------------


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every experiment that the choice prepares."""
    result = []

    def kept(*arguments: Any, **more: Any) -> Any:
        result.append(prepare(*arguments, **more))
        return result[-1]

    monkeypatch.setattr(auto, "prepare", kept)
    return result


def test_a_fold_predicts_the_same_as_a_run_without_the_labels(folder: Path) -> None:
    """The features that all trials share give the hits of a run of its own."""
    given = config(folder, algo="auto")
    probe = Candidate(name="linear_probe", algorithm="linear_probe")
    experiment = prepare(auto.with_candidate(given, probe))
    experiment.trainer.start()
    folds = list(auto._folds(experiment))
    trial = feature_trial(experiment.config, probe, experiment, folds)
    kept, held_out = folds[0]
    split = experiment.split
    labeled = split.labeled[kept]
    pool = np.unique(np.concatenate([split.unlabeled, split.labeled[held_out]]))
    part = type(split)(labeled, pool, split.labeled[held_out], split.test[:0])
    run = prepare(experiment.config, table=experiment.table, split=part)
    run.trainer.fit()
    assert run.trainer.best.accuracy == trial.hits[held_out].mean()


def test_one_label_per_class_uses_the_default(folder: Path, prepared: list[Any]) -> None:
    _, choice = choose(config(folder, algo="auto", labels_per_class=1, val_fraction=0.0))
    assert choice.name == "graph_probe"
    assert choice.trials == ()
    assert "cross-validation needs two labels" in choice.reason
    assert len(prepared) == 1


def test_from_random_weights_the_default_is_selected_immediately(
    folder: Path, prepared: list[Any]
) -> None:
    given = config(folder, algo="auto", pretrained=False, weights=None)
    chosen, choice = choose(given)
    assert chosen.settings.algo == choice.algorithm
    assert choice.name == candidates(pretrained=False)[0].name
    assert prepared == []


def test_options_of_auto_are_refused(folder: Path) -> None:
    message = refusal("run", *flags(folder, algo="auto"), "--set", "auto.k=3")
    assert "auto.k" in message


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_reports_its_choice_and_resume_keeps_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "BUDGET", 0.0)
    output = tmp_path / "run"
    monkeypatch.setattr(Trainer, "_fit_head", _killed)
    with pytest.raises(_Killed):
        call("run", *flags(folder, algo="auto"), "--output", output)
    monkeypatch.undo()
    record = json.loads((output / "record.json").read_text())
    assert record["auto"]["algorithm"] == "graph_probe"
    assert {trial["algorithm"] for trial in record["auto"]["trials"]} >= {"linear_probe"}
    monkeypatch.setattr(auto, "choose", _killed)  # what was chosen is not chosen again
    done = call("run", *flags(folder, algo="auto"), "--output", output, "--continue")
    assert done.returncode == 0, done.stderr
    assert "algorithm: graph_probe" in done.stdout
    assert call("check-run", output).returncode == 0
    assert "nothing to do" in call("resume", output).stdout
    assert "auto: uses graph_probe: " in (output / "log.txt").read_text()
    other = ("run", *flags(folder, algo="auto", seed=1), "--output", output, "--continue")
    assert "seed is 0 there" in refusal(*other)
    assert resume(output).summary.algorithm == "graph_probe"


class _Killed(BaseException):
    pass


def _killed(*_: object, **__: object) -> None:
    raise _Killed


# --- comparisons ---------------------------------------------------------------------------------


def _comparison(folder: Path, **more: Any) -> dict[str, Any]:
    left_out = ("algo", "seed")
    given = {key: value for key, value in keys(folder).items() if key not in left_out}
    return given | {"seeds": [0], **more}


def test_a_pre_trained_comparison_has_the_linear_probe(folder: Path) -> None:
    def rows(**more: Any) -> list[str]:
        return [row.name for row in load_comparison(flags=_comparison(folder, **more)).rows]

    assert rows(algos="simple,fixmatch") == ["simple", "fixmatch", "linear_probe"]
    assert rows(algos="linear_probe,simple") == ["linear_probe", "simple"]
    assert rows(algos="simple", probe=False) == ["simple"]
    assert rows(algos="simple", pretrained=None) == ["simple"]
    assert rows(algos="simple", stream_buffer=8) == ["simple"]
    named = {"probe": {"algo": "linear_probe"}}
    assert rows(algos="simple", rows=named) == ["simple", "probe"]

    def baseline(**more: Any) -> str:
        return load_comparison(flags=_comparison(folder, **more)).baseline

    assert baseline(algos="simple") == "linear_probe"
    assert baseline(algos="simple,supervised") == "supervised"
    assert baseline(algos="simple,fixmatch", probe=False) == "simple"
    assert baseline(algos="simple", pretrained=None) == "simple"
    assert baseline(algos="simple", baseline="simple") == "simple"


def test_the_probe_shares_what_the_other_rows_share(folder: Path) -> None:
    """Keys that each row sets for itself included."""
    given = _comparison(
        folder,
        rows={
            "short": {"algo": "simple", "steps": 7, "optimizer": {"weight_decay": 0.1}},
            "other": {"algo": "fixmatch", "steps": 7, "optimizer": {"weight_decay": 0.1}},
        },
    )
    del given["steps"]
    *_, probe = load_comparison(flags=given).rows
    assert probe.name == "linear_probe"
    assert probe.config.settings.steps == 7
    assert probe.config.settings.optimizer.weight_decay == 0.1


@pytest.mark.slow
def test_a_comparison_of_auto_probes_and_steps(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "BUDGET", 0.0)
    monkeypatch.setattr(comparing, "registered_here", lambda _: "a test")  # in this process
    given = _comparison(
        folder, algos="graph_probe,simple,auto", seeds=[0, 1], output=str(tmp_path / "compared")
    )
    done = compare(given)
    assert done.status == 0, (tmp_path / "compared" / "failures.json").read_text()
    rows = {row.name: row for row in done.comparison.rows}
    assert list(rows) == ["graph_probe", "simple", "auto", "linear_probe"]
    assert rows["auto"].algorithm == "auto"
    assert done.comparison.baseline == "linear_probe"
    scores = {name: row.scores["test.accuracy"].values for name, row in rows.items()}
    assert scores["auto"] == scores["graph_probe"]
    notes = "\n".join(done.comparison.notes)
    assert "fitted to frozen features at once" in notes
    assert "auto chose graph_probe" in notes
    again = compare(given)  # nothing is left, and nothing is refused
    assert again.status == 0
    assert call("report", tmp_path / "compared").returncode == 0


def test_minutes_work_with_algorithms_that_fit_a_head(folder: Path) -> None:
    for algo in ("linear_probe", "simple"):
        costs = prepare(config(folder, algo=algo)).trainer.measure(steps=2, warm=1)
        assert costs.step > 0
        assert costs.steps_within(60, lambda steps: steps) >= 1
