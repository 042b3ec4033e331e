"""Run defaults of algorithms: where they rank, how they are checked, shown and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import call
from torch.nn import functional as F

from ssl_toolkit import (
    Algorithm,
    Batch,
    Context,
    Loss,
    Options,
    PluginError,
    StepOutput,
    Views,
    compare,
    option,
    register_algorithm,
    registry,
)
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.config.loading import RunConfig, load_config
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.testing import ContractError, check_plugin

STATED: dict[str, Any] = {
    "augment": {"strong": "fixed", "weak_options": {"padding_fraction": 0.25}},
    "ema": False,
    "optimizer": {"weight_decay": 0.1},
}
PROFILES: dict[str, Any] = {
    "reference": {
        "optimizer": {"clip_norm": 3.0, "weight_decay": 0.2},
        "ema": {"decay": 0.5},
        "labeled_in_pool": True,
        "options": {"rate": 2.0},
    }
}


class Stating(Algorithm):
    """Trains on the labels, with defaults of its own."""

    run_defaults = STATED
    profiles = PROFILES

    class Config(Options):
        rate: float = option(1.0, ge=0, help="no effect")

    config: Config

    def views(self) -> Views:
        return Views(labeled_strong=1)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        logits = ctx.model(batch.labeled_strong[0]).float()
        return StepOutput({"supervised": Loss(F.cross_entropy(logits, batch.labels))})


@pytest.fixture(autouse=True)
def stating() -> Iterator[None]:
    register_algorithm("stating")(Stating)
    yield
    del registry._registered["algorithms", "stating"]


def config(*sets: str, algo: str = "stating", **flags: Any) -> RunConfig:
    return load_config([], {"algo": algo, **flags}, sets)


def test_run_defaults_replace_the_built_in_ones() -> None:
    settings = config().settings
    assert settings.augment.strong == "fixed"
    assert settings.ema is False
    assert settings.optimizer.weight_decay == 0.1
    assert config().tree()["augment"]["weak_options"] == {"padding_fraction": 0.25}
    assert not {"ema", "augment.strong"} & settings.model_fields_set
    assert config(algo="supervised").settings.augment.strong == "randaugment"


@pytest.mark.parametrize("profile", ["paper", "reference"])
def test_run_defaults_replace_those_of_a_profile(profile: str) -> None:
    settings = config(profile=profile).settings
    assert settings.ema is False
    assert settings.optimizer.weight_decay == 0.1
    assert settings.optimizer.clip_norm == (3.0 if profile == "reference" else None)
    assert not {"ema", "labeled_in_pool"} & settings.model_fields_set


def test_a_profile_that_is_not_stated_is_refused_in_a_line() -> None:
    done = call("run", "--algo", "stating", "--profile", "original", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: --profile: must be paper or reference for algorithm 'stating' (given 'original')\n"
    )
    fitted = load_config([], {"algo": "linear_probe", "profile": "original"})
    assert fitted.run_defaults() == {}


def test_the_user_replaces_a_profile() -> None:
    changed = config("optimizer.clip_norm=1", "stating.rate=3", profile="reference")
    assert (changed.settings.optimizer.clip_norm, changed.algorithm.rate) == (1, 3)
    assert config(profile="reference").algorithm.rate == 2


def test_a_profile_trains_the_whole_network_as_published_runs_do() -> None:
    settings = resolve_config(config(profile="reference", pretrained=True, backbone="resnet18"))[0]
    model = settings.settings.model
    assert (model.freeze, model.head_init, model.batchnorm_momentum) == ("none", "random", None)
    settings = resolve_config(config(profile="reference", backbone="wrn_28_2"))[0]
    assert settings.settings.model.batchnorm_momentum == 0.001


def test_the_user_replaces_run_defaults() -> None:
    settings = config("augment.strong=randaugment", "ema.decay=0.9").settings
    assert settings.augment.strong == "randaugment"
    assert settings.augment.weak == "weak"
    assert settings.ema
    assert settings.ema.decay == 0.9
    assert config("ema={}").settings.ema
    other = config("augment.weak=none").tree()["augment"]
    assert other["weak_options"] == {}  # those of the run default are of another augmenter


def test_defaults_of_pretrained_runs_replace_run_defaults(monkeypatch: Any) -> None:
    monkeypatch.setattr(Stating, "run_defaults", {"lr": 0.5, "sampler": "balanced"})
    assert config().settings.lr == 0.5
    tuned = config("model.freeze=none", pretrained=True).settings
    assert (tuned.lr, tuned.sampler) == (5e-3, "balanced")


def test_run_defaults_that_apply_are_listed() -> None:
    assert config().run_defaults() == {
        "augment.strong": "fixed",
        "augment.weak_options.padding_fraction": 0.25,
        "ema": False,
        "optimizer.weight_decay": 0.1,
    }
    changed = config("augment.strong=randaugment", "ema.decay=0.9")
    assert changed.run_defaults().keys() == {
        "augment.weak_options.padding_fraction",
        "optimizer.weight_decay",
    }
    assert config(algo="supervised").run_defaults() == {}
    assert config(algo="auto").run_defaults() == {}


@pytest.mark.parametrize(
    ("stated", "fault"),
    [
        ({"steps": 5}, "steps: must be one of augment, ema, lr, optimizer, sampler, schedule"),
        ({"lr": -1.0}, "lr: Input should be greater than 0"),
        ({"augment": {"strength": 3}}, "augment.strength: Extra inputs are not permitted"),
        ({"augment": {"flip": True}}, "augment.flip: belongs to the data set; leave it out"),
        (["ema"], r"must be a map of settings \(given \['ema'\]\)"),
    ],
)
def test_wrong_run_defaults_are_refused_in_a_line(
    stated: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stating, "run_defaults", stated)
    with pytest.raises(PluginError, match=f"^run_defaults of algorithm 'stating': {fault}"):
        config()
    with pytest.raises(ContractError, match="states_valid_run_defaults"):
        check_plugin(Stating)


@pytest.mark.parametrize(
    ("profiles", "fault"),
    [
        ({"reference": {"steps": 5}}, "reference: steps: must be one of augment, ema, lr, "),
        ({"reference": {"lr": -1.0}}, "reference: lr: Input should be greater than 0"),
        ({"paper": {}}, "paper: must be reference or original"),
    ],
)
def test_wrong_profiles_are_refused_in_a_line(
    profiles: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stating, "profiles", profiles)
    with pytest.raises(PluginError, match=f"^profiles of algorithm 'stating': {fault}"):
        config()
    with pytest.raises(ContractError, match="has_valid_profiles"):
        check_plugin(Stating)


def test_show_and_dry_run_name_the_settings_of_a_profile() -> None:
    shown = call("show", "stating").stdout
    assert "profile reference: optimizer.clip_norm = 3.0" in shown
    assert "rate = 1.0  (number, >= 0, profile reference: 2.0)" in shown
    (described,) = json.loads(call("show", "stating", "--json").stdout)
    assert described["profiles"]["reference"]["options.rate"] == 2
    text = call("run", "--algo", "stating", "--profile", "reference", "--dry-run").stdout
    assert "# optimizer.clip_norm: 3.0 is a run default of stating --profile reference" in text


def test_show_and_dry_run_name_run_defaults() -> None:
    shown = call("show", "stating").stdout
    assert "run default: augment.strong = fixed" in shown
    assert json.loads(call("show", "stating", "--json").stdout)[0]["run_defaults"]["ema"] is False
    text = call("run", "--algo", "stating", "--dry-run").stdout
    assert "# ema: False is a run default of stating" in text
    assert yaml.safe_load(text)["augment"]["strong"] == "fixed"
    text = call("run", "--algo", "stating", "--set", "augment.strong=randaugment", "--dry-run")
    assert "# augment.strong" not in text.stdout


FEW = {"seeds": [0], "steps": 2, "eval_every": 2, "batch_size": 8, "device": "cpu"}


def test_rows_may_differ_in_run_defaults_and_are_marked(tmp_path: Path) -> None:
    result = compare({"algos": ["stating", "supervised", "fixmatch"], "output": tmp_path, **FEW})
    first, *others = result.comparison.rows
    assert first.overrides.keys() == {*config().run_defaults()}
    assert {*first.run_defaults} == first.overrides.keys()
    assert all(not row.overrides and not row.run_defaults for row in others)
    shared = result.comparison.shared
    assert "optimizer.name" in shared
    assert not {"augment.strong", "ema", "ema.decay", "optimizer.weight_decay"} & shared.keys()
    assert not any(key.startswith("augment.strong_options") for key in shared)
    text = (tmp_path / "comparison.md").read_text().replace("\\", "")
    assert "differs from other rows by run defaults of its algorithm: " in text
    assert "augment.strong=fixed" in text
    record = json.loads((tmp_path / "runs" / "stating" / "s0" / "record.json").read_text())
    assert record["run_defaults"] == config().run_defaults()
    assert "ema = False, a run default of --algo stating" in record["notes"]


def test_other_differences_are_refused_still(tmp_path: Path) -> None:
    rows: Mapping[str, Any] = {
        "a": {"algo": "stating"},
        "b": {"algo": "supervised", "augment": {"strong": "fixed"}},
        "c": {"algo": "fixmatch"},
    }
    done = call("compare", "--dry-run", "--config", write(tmp_path, {"rows": rows, **FEW}))
    assert done.returncode == 2
    assert "augment.strong differs between rows that are compared: " in done.stderr
    assert "ema" not in done.stderr


def write(folder: Path, tree: Mapping[str, Any]) -> Path:
    path = folder / "rows.yaml"
    path.write_text(yaml.safe_dump(dict(tree)))
    return path


def test_a_probe_is_added_without_the_run_defaults_of_the_first_row() -> None:
    flags = {"algos": "stating,fixmatch", "pretrained": True, "backbone": "resnet18"}
    *_, probe = load_comparison([], flags).rows
    assert probe.config.section == "linear_probe"
    settings = probe.config.settings
    assert (settings.augment.strong, settings.ema is False) == ("randaugment", False)
    assert settings.optimizer.weight_decay == 0.02
    *_, probe = load_comparison([], flags, ["augment.strong=fixed"]).rows
    assert probe.config.settings.augment.strong == "fixed"
