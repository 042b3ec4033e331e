"""The step of each algorithm against its formula, on a toy network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loss_forms import fixmatch_loss
from pydantic import ValidationError
from ssl_toolkit_fixmatch import FixMatch
from ssl_toolkit_mixmatch import MixMatch, MixMatchEnhanced
from ssl_toolkit_simple import SimPLE
from ssl_toolkit_supervised import FullySupervised
from torch.nn import functional as F
from toy_context import CLASSES, FakeContext, build, make_batch, objective, run

from ssl_toolkit import Algorithm
from ssl_toolkit.config.run_defaults import profile_options
from ssl_toolkit.ops import sample_beta

# --- SimPLE -------------------------------------------------------------------------------------


def test_simple_counts_confident_pseudo_labels() -> None:
    ctx = FakeContext()
    output, batch = run(SimPLE, ctx, unlabeled_ratio=7)
    guess = output.pseudo_labels
    assert guess is not None
    assert 0 < guess.mask.sum() < len(guess.mask)
    assert torch.equal(guess.mask, guess.probs.amax(dim=-1) > 0.95)
    views = batch.unlabeled_weak
    mean = torch.stack([ctx.teacher_net(view).logits.softmax(dim=-1) for view in views]).mean(dim=0)
    expected = mean.square() / mean.square().sum(dim=-1, keepdim=True)
    torch.testing.assert_close(guess.probs, expected)
    assert 0 < output.metrics["pair_both"] <= output.metrics["pair_confidence"] < 1


def test_simple_matches_a_plain_loop() -> None:
    ctx = FakeContext(step=15)  # half way up the ramp
    output, batch = run(SimPLE, ctx, strong_views=3, pair_weight=50)
    assert output.pseudo_labels is not None
    guess = output.pseudo_labels.probs
    images = torch.cat([batch.labeled_weak[0], batch.unlabeled_strong.flatten(0, 1)])
    probs = ctx.live(images).logits.softmax(dim=-1)
    labeled, unlabeled = probs[:4], probs[4:].reshape(3, 4, CLASSES)
    supervised = -labeled[range(4), batch.labels].log().mean()
    rows = [(guess[b], unlabeled[k, b]) for k in range(3) for b in range(4)]
    unsupervised = sum(((q - p) ** 2).sum() for q, p in rows if q.max() > 0.95) / (12 * CLASSES)
    pair = torch.tensor(0.0)
    for i, (q, _) in enumerate(rows):
        for j, (other, p) in enumerate(rows):
            similarity = (q * other).sqrt().sum()
            if i != j and q.max() > 0.95 and similarity > 0.9:
                pair = pair + q.max() * similarity * (1 - (q * p).sqrt().sum())
    expected = supervised + 37.5 * unsupervised + 25 * pair / 66
    assert output.losses["pair"].value > 0
    torch.testing.assert_close(objective(output), expected)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 37.5 / CLASSES),
        ({"unsupervised_weight": 10}, 5 / CLASSES),
        ({"pair_weight": 0}, 0),
        ({"pair_weight": 75}, 75),
        ({"pair_weight": "same"}, 75),
        ({"pair_weight": "same", "unsupervised_weight": 10}, 10),
        (profile_options(SimPLE, "reference"), 75),
    ],
)
def test_the_weight_of_pairs_falls_with_the_number_of_classes(
    options: dict[str, Any], weight: float
) -> None:
    output, _ = run(SimPLE, FakeContext(step=100), **options)
    assert output.losses["pair"].weight == pytest.approx(weight)


def test_simple_with_cross_entropy() -> None:
    output, _ = run(SimPLE, FakeContext(), unsupervised_loss="cross_entropy")
    assert (
        output.losses["unsupervised"].value
        > run(SimPLE, FakeContext())[0].losses["unsupervised"].value
    )
    none, _ = run(
        SimPLE, FakeContext(), unsupervised_loss="cross_entropy", confidence_threshold=1.0
    )
    assert none.losses["unsupervised"].value == 0
    assert none.losses["pair"].value == 0


def test_simple_passes_its_pair_options_on() -> None:
    values = {
        (distance, weighted): run(
            SimPLE, FakeContext(), pair_distance=distance, confidence_weighted=weighted
        )[0]
        .losses["pair"]
        .value.item()
        for distance in ("bhattacharyya", "l2", "entropy")
        for weighted in (True, False)
    }
    assert len(set(values.values())) == 6


@pytest.mark.parametrize("kind", [SimPLE, MixMatch, MixMatchEnhanced])
def test_one_view_is_enough(kind: type[Algorithm]) -> None:
    strong = {} if kind is MixMatch else {"strong_views": 1}
    output, batch = run(kind, FakeContext(), weak_views=1, **strong)
    assert batch.unlabeled_weak.shape[0] == 1
    assert objective(output).isfinite()


# --- MixMatch -----------------------------------------------------------------------------------


def test_mixmatch_trains_on_its_declared_views() -> None:
    for options, rows in (({}, 4 + 4 * 9), ({"train_on": "strong"}, 4 + 4 * 7)):
        ctx = FakeContext()
        run(MixMatchEnhanced, ctx, **options)
        assert ctx.calls == [("teacher", 8, False), ("forward", rows, True)]
    ctx = FakeContext()
    output, _ = run(MixMatch, ctx)
    assert ctx.calls == [("teacher", 8, False), ("forward", 12, True)]
    assert output.pseudo_labels is not None
    assert output.pseudo_labels.mask.all()


@pytest.mark.parametrize("alpha", [0.1, 0.75, 16.0])
def test_shares_of_a_mixture_follow_their_beta_distribution(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = sample_beta(alpha, 200_000, generator).double()
    assert draws.min() >= 0
    assert draws.max() <= 1
    assert draws.mean().item() == pytest.approx(0.5, abs=4e-3)
    # Second and fourth central moments of Beta(alpha, alpha).
    second = 1 / (4 * (2 * alpha + 1))
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    centered = draws - 0.5
    assert centered.pow(2).mean().item() == pytest.approx(second, rel=0.02)
    assert centered.pow(4).mean().item() == pytest.approx(fourth, rel=0.03)


def test_smallest_alpha_gives_no_nan() -> None:
    assert sample_beta(0.01, 100_000, torch.Generator().manual_seed(0)).isfinite().all()


# --- FixMatch -----------------------------------------------------------------------------------


def test_fixmatch_predicts_in_the_joint_forward() -> None:
    ctx = FakeContext()
    algorithm = build(FixMatch, confidence_threshold=0.34)
    batch = make_batch(algorithm)
    output = algorithm.step(batch, ctx)
    assert ctx.calls == [("forward", 4 + 2 * 28, True)]
    parts = batch.labeled_weak[0], batch.unlabeled_weak[0], batch.unlabeled_strong[0]
    logits = ctx.live(torch.cat(parts)).logits
    probs = logits[4:32].softmax(dim=-1)
    assert output.pseudo_labels is not None
    assert torch.equal(output.pseudo_labels.mask, probs.amax(dim=-1) >= 0.34)
    assert 0 < output.pseudo_labels.mask.sum() < 28
    losses = -logits[32:].log_softmax(dim=-1)[range(28), probs.argmax(dim=-1)]
    torch.testing.assert_close(
        output.losses["unsupervised"].value, losses[output.pseudo_labels.mask].sum() / 28
    )


def test_fixmatch_sends_no_gradient_into_weak_views() -> None:
    algorithm = build(FixMatch, confidence_threshold=0.0)
    batch = make_batch(algorithm)
    for views in (batch.unlabeled_weak, batch.unlabeled_strong):
        views.requires_grad_()
    ctx = FakeContext(normalized=False)  # batch statistics would carry some from view to view
    objective(algorithm.step(batch, ctx)).backward()
    assert batch.unlabeled_weak.grad is None or batch.unlabeled_weak.grad.count_nonzero() == 0
    assert batch.unlabeled_strong.grad is not None
    assert batch.unlabeled_strong.grad.count_nonzero() > 0


# --- bounds -------------------------------------------------------------------------------------


def test_fully_supervised_estimates_the_mean_over_all_images() -> None:
    ctx = FakeContext()
    output, batch = run(FullySupervised, ctx, unlabeled_ratio=3)
    assert batch.unlabeled_labels is not None
    images = torch.cat([batch.labeled_weak[0], batch.unlabeled_weak[0]])
    labels = torch.cat([batch.labels, batch.unlabeled_labels])
    losses = -ctx.live(images).logits.log_softmax(dim=-1)[range(16), labels]
    labeled, pool = 2 * CLASSES, 40  # the sizes that the toy task tells
    expected = (labeled * losses[:4].mean() + pool * losses[4:].mean()) / (labeled + pool)
    torch.testing.assert_close(output.losses["supervised"].value, expected)


def test_fully_supervised_needs_the_hidden_labels() -> None:
    algorithm = build(FullySupervised)
    batch = make_batch(build(SimPLE))
    with pytest.raises(ValueError, match="unlabeled_labels"):
        algorithm.step(batch, FakeContext())


def test_fixmatch_can_predict_in_a_separate_forward() -> None:
    algorithm = build(FixMatch, confidence_threshold=0.34, forward="separate")
    batch = make_batch(algorithm)
    ctx = FakeContext()
    output = algorithm.step(batch, ctx)
    assert ctx.calls == [("forward", 28, False), ("forward", 32, True)]
    norm = FakeContext().live.norm
    live = FakeContext().live.train()
    weak = live(batch.unlabeled_weak[0]).logits.detach()
    together = live(torch.cat([batch.labeled_weak[0], batch.unlabeled_strong[0]])).logits
    labeled, strong = together.split([4, 28])
    expected = F.cross_entropy(labeled, batch.labels)
    expected = expected + fixmatch_loss(weak, strong, 0.34)[0]
    torch.testing.assert_close(objective(output), expected)
    assert int(ctx.live.norm.num_batches_tracked) == int(norm.num_batches_tracked) + 1
    assert output.pseudo_labels is not None
    torch.testing.assert_close(output.pseudo_labels.probs, weak.softmax(dim=-1))


@pytest.mark.parametrize("form", ["separate", "selective"])
def test_the_forms_of_fixmatch_are_equal_without_batchnorm(form: str) -> None:
    values, gradients = [], []
    for forward in ("joint", form):
        ctx = FakeContext(normalized=False)
        output, _ = run(FixMatch, ctx, confidence_threshold=0.34, forward=forward)
        assert output.pseudo_labels is not None
        used = int(output.pseudo_labels.mask.sum())
        assert 0 < used < 28
        assert ctx.calls[-1][1] == {"joint": 60, "separate": 32, "selective": 4 + used}[forward]
        objective(output).backward()
        values.append(objective(output).detach())
        gradients.append(ctx.live.conv.weight.grad)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)


def test_without_confident_image_fixmatch_trains_on_the_labels_alone() -> None:
    ctx = FakeContext()
    output, _ = run(FixMatch, ctx, confidence_threshold=1.0, forward="selective")
    assert ctx.calls[-1] == ("forward", 4, True)
    assert output.losses["unsupervised"].value == 0
    objective(output).backward()
    with pytest.raises(ValidationError, match="can't be interleaved"):
        FixMatch.Config(forward="selective", interleaved=True)
