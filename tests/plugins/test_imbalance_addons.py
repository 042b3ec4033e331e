"""The add-ons for uneven classes: what each of them changes, resuming, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import plain_backbone  # noqa: F401
import pytest
import torch
from parity_imbalance import IMBALANCE, IMBALANCE_VARIANTS
from short_runs import SHORT, stop_after
from ssl_toolkit_imbalance import ABC, SAW
from step_parity import TOLERANCE, deviations
from toy_context import FakeContext, build, make_batch, objective

from ssl_toolkit import PluginError, TaskInfo, registry
from ssl_toolkit.runs import execute
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.runs.train import train
from ssl_toolkit.testing.host_sync import forbid

OPTIONS: dict[str, dict[str, Any]] = {
    "abc": {"confidence_threshold": 0.1},
    "darp": {"interval": 2, "warmup_fraction": 0.25},
    "daso": {"queue_size": 4, "window": 2, "warmup_fraction": 0.25},
    "saw": {"updates": 4},
    "adsh": {"updates": 4, "confidence_threshold": 0.2},
}
STATE = {
    "abc": "head.weight",
    "darp": "duals",
    "daso": "shares",
    "saw": "class_weights",
    "adsh": "ratios",
}
"""A part of the state of each that training changes."""


def configuration(name: str, base: str = "fixmatch", **keys: Any) -> dict[str, Any]:
    own = {"confidence_threshold": 0.2, name: OPTIONS[name]}
    return SHORT | {"algo": f"{base}+{name}", base: own, "backbone": "plain"} | keys


# --- formulas -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", IMBALANCE)
def test_an_add_on_is_the_same_formula_in_the_profile_of_the_code(algo: str) -> None:
    result = deviations(algo, "reference", IMBALANCE[algo])
    assert result.largest < TOLERANCE, result


@pytest.mark.parametrize(
    ("algo", "options"),
    [(a, options) for a, found in IMBALANCE_VARIANTS.items() for options in found],
)
def test_its_options_change_the_formula_as_documented(algo: str, options: dict[str, Any]) -> None:
    case = IMBALANCE[algo]
    result = deviations(algo, "reference", replace(case, options=case.options | options))
    assert result.largest < TOLERANCE, result


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("base", ["fixmatch", "simple"])
def test_a_step_transfers_no_value_to_the_host_and_only_the_base_moves_statistics(
    name: str, base: str
) -> None:
    algorithm = build(registry.load("algorithms", f"{base}+{name}"), **{name: OPTIONS[name]})
    ctx, batch = FakeContext(step=50), make_batch(algorithm)
    marked = [batch.unlabeled_weak, batch.labels, *algorithm.state_dict().values()]
    for _ in range(3):
        with forbid(torch.device("cpu"), marked):
            output = algorithm.step(batch, ctx)
    objective(output).backward()
    updates = [call for call in ctx.calls if call[0] == "forward" and call[2]]
    assert len(updates) == 3
    assert all(value.isfinite().all() for value in algorithm.state_dict().values())


def test_abc_predicts_with_its_head_and_extends_the_views_of_any_base() -> None:
    algorithm = build(registry.load("algorithms", "mean_teacher+abc"))
    views = algorithm.views()
    assert (views.labeled_weak, views.unlabeled_weak, views.unlabeled_strong) == (1, 2, 1)
    output = FakeContext().forward(torch.rand(5, 3, 6, 6))
    assert torch.equal(algorithm.predict(output), algorithm.addon.head(output.features))


def test_abc_keeps_every_image_of_the_rarest_class() -> None:
    addon = ABC(ABC.Config(), TaskInfo(4, 8, (20, 10, 4, 2), 40, 100))
    labels = torch.arange(4).repeat(4000)
    kept = addon._draw(addon.keep_rates[labels], FakeContext())
    shares = [kept[labels == c].float().mean().item() for c in range(4)]
    assert shares == pytest.approx([0.1, 0.2, 0.5, 1.0], abs=0.03)


def test_saw_weighs_a_label_by_how_rare_its_class_is() -> None:
    addon = SAW(SAW.Config(beta=1 - 1e-9), TaskInfo(3, 8, (8, 4, 2), 40, 100))
    batch = make_batch(build(registry.load("algorithms", "fixmatch")))
    batch = replace(batch, labels=torch.tensor([0, 1, 2, 0]))
    weighted = addon.weigh_labels(torch.tensor([7.0, 7.0, 7.0, 14.0]), batch, FakeContext())
    assert weighted.tolist() == pytest.approx([3, 6, 12, 6])  # inverse counts with mean 1


# --- runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_has_the_same_state(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(folder: str) -> dict[str, Any]:
        return torch.load(tmp_path / folder / "checkpoints" / "last.pt", weights_only=True)

    train(configuration(name, steps=8, output=str(tmp_path / "whole")))
    monkeypatch.setattr(execute, "_stop_reason", stop_after(5))
    train(configuration(name, steps=8, output=str(tmp_path / "half")))
    assert last("half")["step"] == 5
    monkeypatch.undo()
    resume(tmp_path / "half")
    whole, half = last("whole"), last("half")
    for part in ("model", "algorithm_state"):
        assert whole[part].keys() == half[part].keys()
        assert all(torch.equal(value, half[part][key]) for key, value in whole[part].items())
    state = whole["algorithm_state"][f"addon.{STATE[name]}"]
    assert len(state.unique()) > 1


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["darp", "daso", "saw", "adsh"])
def test_a_base_without_pseudo_labels_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match=f"add-on '{name}' can't be applied to MeanTeacher"):
        registry.load("algorithms", f"mean_teacher+{name}")
