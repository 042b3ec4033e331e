"""Add-ons: composed algorithms, their contexts, options, checkpoints and models."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from nudge import Nudge
from projected import Projected
from torch import Tensor
from toy_context import FakeContext, build, make_batch, objective

import ssl_toolkit
from ssl_toolkit import AddOn, Batch, Context, PluginError, load_model, registry
from ssl_toolkit.config.comparison import load_comparison
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.errors import ConfigError

SHORT: dict[str, Any] = {
    "backbone": "plain",
    "steps": 6,
    "eval_every": 3,
    "save_every": 2,
    "log_every": 1,
    "batch_size": 8,
    "device": "cpu",
    "lr": 0.05,
}


class Plain(AddOn):
    """Change nothing."""


class Reads(AddOn):
    """Record what the context of an add-on returns."""

    seen: ClassVar[dict[str, Tensor]] = {}

    def adjust(self, logits: Tensor, ctx: Context) -> Tensor:
        return logits + 1

    def losses(self, batch: Batch, ctx: Context, output: Any) -> dict[str, Any]:
        images = batch.labeled_weak[0]
        self.seen["model"] = ctx.forward(images, update_statistics=False).logits
        return {}


def trainer(algo: str, **keys: Any) -> Trainer:
    return prepare(validate([Layer("test", SHORT | {"algo": algo} | keys)])).trainer


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register_addon("nudge")(Nudge)
    registry.register_addon("plain")(Plain)
    registry.register_addon("reads")(Reads)


def test_a_composed_class_is_cached_and_has_the_options_of_both() -> None:
    composed = registry.load("algorithms", "fixmatch+nudge")
    assert composed is registry.load("algorithms", "fixmatch+nudge")
    assert composed is Nudge.applied_to(registry.load("algorithms", "fixmatch"), "nudge")
    options = composed.Config(nudge={"shift": "0.25"}, confidence_threshold=0.5)
    assert (options.nudge.shift, options.confidence_threshold) == (0.25, 0.5)
    assert not composed.is_baseline
    assert composed.auto_rank == composed.auto_rank_from_scratch == 0


@pytest.mark.parametrize("algo", ["fixmatch", "simple", "flexmatch"])
def test_an_add_on_without_methods_changes_no_bit(algo: str) -> None:
    plain, added = trainer(algo), trainer(f"{algo}+plain")
    for run in (plain, added):
        run.fit()
    expected = plain.classifier.state_dict()
    assert all(torch.equal(expected[k], v) for k, v in added.classifier.state_dict().items())
    assert plain.evaluations == added.evaluations


@pytest.mark.parametrize("algo", ["fixmatch", "simple", "flexmatch"])
def test_every_method_of_an_add_on_takes_effect(algo: str) -> None:
    keys = {algo: {"confidence_threshold": 0.1}, "ema": {"decay": 0.5}}
    run = trainer(f"{algo}+nudge", **keys)
    before = copy.deepcopy(run.algorithm.state_dict())
    run.fit()
    after = run.algorithm.state_dict()
    assert not torch.equal(before["addon.head.weight"], after["addon.head.weight"])
    assert after["addon.scans"] == 3 * len(run.batches.images.labels)
    averages = run.predictor.averages.state_dict()
    assert not torch.equal(averages["addon/head.weight"], after["addon.head.weight"])
    groups = {group["name"]: group["lr"] for group in run.optimizer.param_groups}
    assert any(rate == pytest.approx(2 * 0.05) for rate in groups.values())


def test_contexts_adjust_refine_and_weigh_for_the_algorithm_only() -> None:
    algorithm = build(registry.load("algorithms", "fixmatch+reads+nudge"), confidence_threshold=0.3)
    batch, ctx = make_batch(algorithm), FakeContext()
    ctx.averages["addon.head"] = algorithm.addon.head
    output = algorithm.step(batch, ctx)
    images = [batch.labeled_weak[0], batch.unlabeled_weak[0], batch.unlabeled_strong[0]]
    shift = 1 + torch.tensor([0.5, 0, 0, 0])
    logits = FakeContext().forward(torch.cat(images)).logits + shift
    probs = logits[4:32].softmax(dim=-1).detach().square()
    probs = probs / probs.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(output.pseudo_labels.probs, probs)
    mask = probs.amax(dim=-1) >= 0.3
    assert 0 < mask.sum() < len(mask)
    assert torch.equal(output.pseudo_labels.mask, mask)
    torch.testing.assert_close(output.pseudo_labels.weights, mask / 2)
    losses = torch.nn.functional.cross_entropy(logits[32:], probs.argmax(-1), reduction="none")
    torch.testing.assert_close(output.losses["unsupervised"].value, (losses * mask / 2).mean())
    raw = FakeContext().forward(batch.labeled_weak[0]).logits
    torch.testing.assert_close(Reads.seen["model"], raw)
    objective(output).backward()


def test_the_teacher_of_the_algorithm_is_its_own_prediction() -> None:
    seen = {}

    class Asks(Projected):
        def step(self, batch: Batch, ctx: Context) -> Any:
            output = super().step(batch, ctx)
            seen["base"] = ctx.teacher(batch.labeled_weak[0])
            return output

    class Predicts(AddOn):
        def losses(self, batch: Batch, ctx: Context, output: Any) -> dict[str, Any]:
            seen["both"] = ctx.teacher(batch.labeled_weak[0])
            return {}

        def predict(self, output: Any, logits: Tensor) -> Tensor:
            return logits * 3

    registry.register_algorithm("asks")(Asks)
    registry.register_addon("predicts")(Predicts)
    run = trainer("asks+predicts", ema=False)
    run.fit()
    torch.testing.assert_close(seen["both"], seen["base"] * 3)


def test_the_algorithm_draws_the_same_with_and_without_an_add_on() -> None:
    seen = {}

    class Draws(AddOn):
        def losses(self, batch: Batch, ctx: Context, output: Any) -> dict[str, Any]:
            seen["addon"] = torch.rand(3, generator=ctx.generator)
            return {}

    registry.register_addon("draws")(Draws)
    algorithm = build(registry.load("algorithms", "mixmatch+draws"))
    ctx, alone = FakeContext(), FakeContext()
    batch = make_batch(algorithm)
    both = algorithm.step(batch, ctx).losses
    base = algorithm.base.step(batch, alone).losses
    assert {k: v.value for k, v in both.items()} == {k: v.value for k, v in base.items()}
    assert torch.equal(ctx.generator.get_state(), alone.generator.get_state())
    assert not torch.equal(seen["addon"], torch.rand(3, generator=torch.Generator().manual_seed(3)))


def test_a_resumed_run_continues_bit_for_bit() -> None:
    keys = {"fixmatch": {"confidence_threshold": 0.3}}
    whole, first = trainer("fixmatch+nudge", **keys), trainer("fixmatch+nudge", **keys)
    whole.fit()
    first.stop = lambda: "enough" if first.step == 3 else ""
    first.fit()
    second = trainer("fixmatch+nudge", **keys)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.fit()
    for part in ("classifier", "algorithm"):
        expected = getattr(whole, part).state_dict()
        actual = getattr(second, part).state_dict()
        assert all(torch.equal(expected[name], value) for name, value in actual.items())
    assert whole.evaluations == second.evaluations


def test_a_saved_model_predicts_with_the_add_on(tmp_path: Path) -> None:
    keys = SHORT | {"algo": "fixmatch+nudge", "output": str(tmp_path / "run")}
    ssl_toolkit.train(keys)
    experiment = prepare(validate([Layer("test", keys)]))
    model = load_model(tmp_path / "run", "cpu")
    assert type(model.predictor.algorithm) is registry.load("algorithms", "fixmatch+nudge")
    images = experiment.trainer.batches.images.inputs.gather(experiment.test[0])
    output = model.predictor.classifier(images)
    head = model.predictor.algorithm.addon.head
    expected = (output.logits + head(output.features)).softmax(dim=-1)
    torch.testing.assert_close(model.predictor(images).logits.softmax(dim=-1), expected)
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ("fixmach+nudge", "unknown algorithm 'fixmach' (did you mean 'fixmatch'"),
        ("auto+nudge", "--algo auto+nudge: auto chooses among algorithms without add-ons; name"),
        ("fixmatch+nugde", "unknown add-on 'nugde' (did you mean 'nudge'?)"),
        ("fixmatch+nudge+nudge", "it is applied already"),
        ("linear_probe+nudge", "fits a head to features"),
        ("supervised+nudge", "doesn't call Context.refine"),
        ("fixmatch+", "unknown add-on ''"),
    ],
)
def test_refusals_in_one_line(algo: str, message: str) -> None:
    with pytest.raises(PluginError) as error:
        validate([Layer("test", {"algo": algo})])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_options_are_nested_in_the_section_of_the_algorithm() -> None:
    layer = Layer("test", {"algo": "fixmatch+nudge", "fixmatch": {"nudge": {"shift": "2"}}})
    config = validate([layer])
    assert config.section == "fixmatch"
    assert config.tree()["fixmatch"]["nudge"] == {"shift": 2.0, "period": 2}
    assert validate([Layer("tree", config.tree())]).tree() == config.tree()
    with pytest.raises(ConfigError, match=r"fixmatch.nudge.shfit.*did you mean 'fixmatch.nudge"):
        validate([Layer("test", {"algo": "fixmatch+nudge", "fixmatch": {"nudge": {"shfit": 2}}})])


def test_rows_of_a_comparison_differ_in_their_add_ons_only() -> None:
    sets = ["fixmatch.nudge.shift=2", "fixmatch.confidence_threshold=0.7"]
    comparison = load_comparison(
        flags={"algos": "fixmatch,fixmatch+nudge,supervised"},
        sets=sets,
        sweeps=["fixmatch.nudge.period=1,3"],
    )
    names = [row.name for row in comparison.rows]
    nudge = [f"fixmatch+nudge nudge.period={n}" for n in (1, 3)]
    assert names == ["fixmatch", *nudge, "supervised"]
    options = [row.config.algorithm.model_dump() for row in comparison.rows]
    assert "nudge" not in options[0]
    assert options[1]["nudge"] == {"shift": 2.0, "period": 1}
    assert options[0]["confidence_threshold"] == options[1]["confidence_threshold"] == 0.7
    assert comparison.baseline == "supervised"
    with pytest.raises(ConfigError, match=r"fixmatch.nudge: unknown key"):
        load_comparison(flags={"algos": "fixmatch,simple+nudge"}, sets=sets)


class Fewer(AddOn):
    """Request fewer views."""

    def views(self, views: Any) -> Any:
        return ssl_toolkit.Views()


def test_an_add_on_can_not_take_views_away() -> None:
    registry.register_addon("fewer")(Fewer)
    with pytest.raises(PluginError, match="views of add-on 'fewer' changes unlabeled_ratio"):
        trainer("fixmatch+fewer")


def test_statistics_of_the_pool_are_those_of_algorithm_and_add_on() -> None:
    class Counts(AddOn):
        """Count."""

        pool_statistics = ("counts",)

    base: Any = registry.load("algorithms", "remixmatch")
    assert Counts.applied_to(base, "counts").pool_statistics == (
        "base.recent_probs",
        "addon.counts",
    )
