"""What holds for every built-in algorithm, on a toy network."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from ssl_toolkit_fixmatch import FixMatch
from ssl_toolkit_mixmatch import MixMatch, MixMatchEnhanced
from ssl_toolkit_simple import SimPLE
from ssl_toolkit_supervised import FullySupervised, Supervised
from torch import Tensor
from toy_context import CLASSES, FakeContext, build, make_batch, objective, run

from ssl_toolkit import Algorithm
from ssl_toolkit.config.run_defaults import profile_options

ALGORITHMS = [SimPLE, MixMatch, MixMatchEnhanced, FixMatch, Supervised, FullySupervised]
SEMI_SUPERVISED = ALGORITHMS[:4]
every_algorithm = pytest.mark.parametrize("kind", ALGORITHMS)
every_semi_supervised = pytest.mark.parametrize("kind", SEMI_SUPERVISED)


@every_algorithm
@pytest.mark.parametrize("profile", ["paper", "reference"])
@pytest.mark.parametrize("step", [0, 50, 99])
def test_losses_are_finite_and_reach_the_model(
    kind: type[Algorithm], profile: str, step: int
) -> None:
    ctx = FakeContext(step)
    output, _ = run(kind, ctx, **profile_options(kind, profile))
    assert "supervised" in output.losses
    for loss in output.losses.values():
        assert loss.value.shape == ()
        assert loss.value.dtype == torch.float32
        assert loss.value.isfinite()
        assert loss.weight >= 0
    for metric in output.metrics.values():
        assert metric.shape == ()
        assert not metric.requires_grad
    objective(output).backward()
    for parameter in ctx.live.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert ctx.live.conv.weight.grad is not None
    assert ctx.live.conv.weight.grad.count_nonzero() > 0
    assert all(parameter.grad is None for parameter in ctx.teacher_net.parameters())


@every_algorithm
def test_the_batch_is_not_modified(kind: type[Algorithm]) -> None:
    algorithm = build(kind)
    batch = make_batch(algorithm)
    views = vars(batch) | {"extra": None} | dict(batch.extra)
    tensors = {name: value for name, value in views.items() if value is not None}
    before = {name: (value.clone(), value._version) for name, value in tensors.items()}
    objective(algorithm.step(batch, FakeContext())).backward()
    for name, value in tensors.items():
        assert torch.equal(value, before[name][0]), name
        assert value._version == before[name][1], name


@every_algorithm
def test_randomness_comes_only_from_the_context(kind: type[Algorithm]) -> None:
    def value(seed: int) -> Tensor:
        return objective(run(kind, FakeContext(seed=seed))[0])

    state = torch.get_rng_state()
    first = value(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    assert torch.equal(value(3), first)
    mixes = kind in (MixMatch, MixMatchEnhanced)
    assert torch.equal(value(4), first) is not mixes


@every_algorithm
def test_labels_matter(kind: type[Algorithm]) -> None:
    algorithm = build(kind)
    batch = make_batch(algorithm)
    first = algorithm.step(batch, FakeContext()).losses["supervised"].value
    batch.labels.copy_((batch.labels + 1) % CLASSES)
    assert algorithm.step(batch, FakeContext()).losses["supervised"].value != first


@every_semi_supervised
@pytest.mark.parametrize("ratio", [1, 3, 7])
def test_pseudo_labels_have_a_row_for_each_unlabeled_image(
    kind: type[Algorithm], ratio: int
) -> None:
    output, batch = run(kind, FakeContext(), unlabeled_ratio=ratio)
    assert batch.unlabeled_weak.shape[1] == 4 * ratio
    guess = output.pseudo_labels
    assert guess is not None
    assert guess.probs.shape == (4 * ratio, CLASSES)
    assert not guess.probs.requires_grad
    torch.testing.assert_close(guess.probs.sum(dim=-1), torch.ones(4 * ratio))
    assert guess.mask.dtype == torch.bool
    assert guess.mask.shape == (4 * ratio,)


@every_semi_supervised
def test_a_weight_of_zero_disables_its_loss(kind: type[Algorithm]) -> None:
    weights = [name for name in kind.Config.model_fields if name.endswith("_weight")]
    ctx = FakeContext()
    losses = run(kind, ctx, **dict.fromkeys(weights, 0))[0].losses
    assert {name.removesuffix("_weight") for name in weights} == set(losses) - {"supervised"}
    assert all(losses[name.removesuffix("_weight")].weight == 0 for name in weights)


@every_semi_supervised
def test_options_are_validated(kind: type[Algorithm]) -> None:
    kind.Config(**profile_options(kind, "reference"))
    for name, field in kind.Config.model_fields.items():
        assert field.description, name
        bounds = {type(bound).__name__: bound for bound in field.metadata}
        for bound, bad in (("Ge", -1), ("Gt", 0), ("Le", 1e4)):
            if bound in bounds:
                with pytest.raises(ValidationError, match=name):
                    kind.Config(**{name: bad})
    with pytest.raises(ValidationError, match="treshold"):
        kind.Config(treshold=1)


@every_algorithm
def test_the_joint_forward_is_one_forward(kind: type[Algorithm]) -> None:
    ctx = FakeContext()
    run(kind, ctx)
    assert [name for name, *_ in ctx.calls].count("forward") == 1
    assert [name for name, *_ in ctx.calls].count("teacher") <= 1


@every_semi_supervised
@pytest.mark.parametrize("ratio", [1, 2])
def test_interleaving_changes_nothing_without_batch_statistics(
    kind: type[Algorithm], ratio: int
) -> None:
    def losses(interleaved: bool) -> dict[str, Tensor]:
        ctx = FakeContext(normalized=False)
        output, _ = run(kind, ctx, interleaved=interleaved, unlabeled_ratio=ratio)
        separate = {size for name, size, _ in ctx.calls if name == "forward"}
        assert (separate == {4}) is (interleaved and kind is not FixMatch)
        return {name: loss.value for name, loss in output.losses.items()}

    joint = losses(False)
    for name, value in losses(True).items():
        torch.testing.assert_close(value, joint[name])


def test_interleaving_changes_batch_statistics() -> None:
    values = {}
    for interleaved in (False, True):
        ctx = FakeContext(normalized=True)
        values[interleaved] = run(MixMatch, ctx, interleaved=interleaved)[0].losses["supervised"]
    assert values[True].value != values[False].value


@pytest.mark.parametrize("kind", [SimPLE, MixMatch, MixMatchEnhanced])
def test_the_live_model_can_predict_pseudo_labels(kind: type[Algorithm]) -> None:
    ctx = FakeContext()
    before = copy.deepcopy(ctx.live.norm.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, batch = run(kind, ctx, pseudo_labels_from="model")
    # One forward a weak view with the statistics left alone, then the training one.
    assert [call[2] for call in ctx.calls] == [False, False, True]
    assert not torch.equal(before["running_mean"], ctx.live.norm.state_dict()["running_mean"])
    assert ctx.live.norm.state_dict()["num_batches_tracked"] == 1
    # Autocast must not remember the weights it converted while gradients were off.
    objective(output).backward()
    for parameter in ctx.live.parameters():
        assert parameter.grad is not None
    probs = [ctx.live(view).logits.softmax(dim=-1) for view in batch.unlabeled_weak]
    sharpened = torch.stack(probs).mean(dim=0).square()
    expected = sharpened / sharpened.sum(dim=-1, keepdim=True)
    assert output.pseudo_labels is not None
    torch.testing.assert_close(output.pseudo_labels.probs, expected.detach(), rtol=0.1, atol=0.02)


@pytest.mark.parametrize("kind", [SimPLE, MixMatch, MixMatchEnhanced])
def test_rampup(kind: type[Algorithm]) -> None:
    def weight(step: int, **options: Any) -> float:
        return run(kind, FakeContext(step), **options)[0].losses["unsupervised"].weight

    assert weight(0) == 0
    assert weight(15) == pytest.approx(75 / 2)
    assert weight(30) == weight(99) == 75
    assert weight(0, rampup_fraction=0) == 75
    assert weight(0, rampup_steps=0) == 75
    assert weight(50, rampup_steps=200) == pytest.approx(75 / 4)
    reference = profile_options(kind, "reference")
    whole_run = reference.get("rampup_fraction") == 1
    assert weight(50, **reference) == (37.5 if whole_run else 75)


def test_only_the_upper_bound_sees_hidden_labels() -> None:
    assert [kind for kind in ALGORITHMS if kind.uses_hidden_labels] == [FullySupervised]
    assert not build(Supervised).views().needs_unlabeled
