"""The formulas of the add-ons for uneven classes, on whole pools."""

from __future__ import annotations

import torch
from ssl_toolkit_imbalance.adsh import class_thresholds
from ssl_toolkit_imbalance.darp import DARP, Factors, refined, solve
from ssl_toolkit_imbalance.saw import smoothed_weights
from torch import Tensor
from toy_context import FakeContext

from ssl_toolkit import TaskInfo


def pool_predictions(count: int = 300, classes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return (logits + torch.linspace(1, -1, classes)).softmax(dim=-1)


def test_refined_predictions_sum_to_the_expected_numbers() -> None:
    probs = pool_predictions()
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    factors = solve(probs, shares, torch.zeros(4, dtype=torch.float64), 2.0, rounds=200)
    result = refined(probs, factors)
    assert torch.allclose(result.sum(dim=0), 300 * shares, atol=1e-6)
    assert torch.allclose(result.sum(dim=1), torch.ones(300, dtype=torch.float64))


def test_darp_ignores_predictions_of_images_that_are_left_out() -> None:
    probs, ctx = pool_predictions(), FakeContext()
    ctx.class_shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    ctx.pool_mask = torch.arange(300) % 3 > 0
    darp = DARP(DARP.Config(warmup_fraction=0), TaskInfo(4, 8, (2,) * 4, 300, 100)).double()
    darp.predictions.copy_(probs)
    darp.scan(iter(()), iter(()), ctx)
    kept, rounds = darp.config.kept, darp.config.rounds
    expected = solve(probs[ctx.pool_mask], ctx.class_shares, torch.zeros(4).double(), kept, rounds)
    torch.testing.assert_close(darp.thresholds, expected.thresholds)
    torch.testing.assert_close(darp.duals, expected.duals)
    whole = solve(probs, ctx.class_shares, torch.zeros(4).double(), kept, rounds)
    assert not torch.allclose(darp.duals, whole.duals)


def test_no_other_predictions_with_these_sums_are_closer() -> None:
    probs = pool_predictions(40)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    factors = solve(probs, shares, torch.zeros(4, dtype=torch.float64), 9.0, rounds=300)
    result = refined(probs, factors)
    kept = refined(probs, factors._replace(duals=torch.zeros(4, dtype=torch.float64)))
    weights = 1 / -(kept * kept.log()).sum(dim=1)

    def distance(rows: Tensor) -> Tensor:
        return (weights * (rows * (rows / kept).log()).sum(dim=1)).sum()

    least = distance(result)
    generator = torch.Generator().manual_seed(2)
    for _ in range(50):
        i, j = torch.randperm(40, generator=generator)[:2].tolist()
        a, b = torch.randperm(4, generator=generator)[:2].tolist()
        amount = 0.3 * min(result[i, a], result[j, b])
        other = result.clone()  # an exchange that changes no sum
        other[i, a] -= amount
        other[i, b] += amount
        other[j, b] -= amount
        other[j, a] += amount
        assert distance(other) > least


def test_a_confident_prediction_moves_less_than_an_uncertain_one() -> None:
    probs = torch.tensor([[0.99, 0.01], [0.6, 0.4]], dtype=torch.float64)
    factors = Factors(torch.zeros(2), torch.ones(2), torch.tensor([0.5, 0.0]))
    moved = (refined(probs, factors) - probs).abs().amax(dim=1)
    assert 0 < 10 * moved[0] < moved[1]


def test_images_not_predicted_yet_do_not_count_in_a_refinement() -> None:
    probs, start = pool_predictions(), torch.zeros(4, dtype=torch.float64)
    shares = torch.full((4,), 0.25, dtype=torch.float64)
    unseen = torch.cat([torch.zeros(50, 4, dtype=torch.float64), probs])
    for ours, theirs in zip(
        solve(probs, shares, start, 2.0, 5), solve(unseen, shares, start, 2.0, 5), strict=True
    ):
        assert torch.allclose(ours, theirs)
    nothing = solve(torch.zeros(50, 4, dtype=torch.float64), shares, start, 2.0, 5)
    assert all(value.isfinite().all() for value in nothing)
    assert torch.equal(refined(probs, nothing).argmax(dim=1), probs.argmax(dim=1))


def test_a_refinement_of_certain_predictions_and_absent_classes_stays_finite() -> None:
    probs = torch.eye(3)[torch.tensor([0, 0, 0, 0, 0, 1])]
    for shares in (torch.tensor([0.2, 0.3, 0.5]), torch.tensor([1.0, 0.0, 0.0])):
        factors = solve(probs, shares, torch.zeros(3), 2.0, rounds=10)
        result = refined(probs, factors)
        assert result.isfinite().all()
        assert torch.equal(result[:5].argmax(dim=1), torch.zeros(5, dtype=torch.int64))


def test_thresholds_select_the_same_share_of_every_class_up_to_the_base_threshold() -> None:
    probs = pool_predictions(4000)
    confidence, predicted = probs.max(dim=1)
    thresholds = class_thresholds(probs, torch.full((4,), 0.8).double(), 1, 0.8)
    selected = [(confidence[predicted == c] >= thresholds[c]).double().mean() for c in range(4)]
    assert thresholds[:2].tolist() == [0.8, 0.8]
    assert selected[0] > selected[1] + 0.05, "the rank of its share is above the base threshold"
    assert max(selected[1:]) - min(selected[1:]) < 0.01
    assert thresholds[3] < thresholds[2] < 0.8


def test_the_rank_of_the_threshold_is_rounded_as_by_the_authors() -> None:
    # Two of five of the largest class are selected: of 6 images, rank 6 · 0.4 - 1 = 1.4.
    largest = torch.tensor([0.99, 0.97, 0.9, 0.8, 0.7])
    other = torch.tensor([0.94, 0.9, 0.85, 0.8, 0.75, 0.6])
    of_largest = torch.stack([largest, 1 - largest], dim=1)
    for count, rank in ((6, 1), (4, 1), (5, 1), (3, 0), (1, 0)):
        of_other = torch.stack([1 - other, other], dim=1)[:count]
        probs = torch.cat([of_largest, of_other])
        assert class_thresholds(probs, torch.full((2,), 0.95), 0, 0.95)[1] == other[rank]


def test_a_class_without_predictions_keeps_its_threshold() -> None:
    probs = torch.tensor([[0.96, 0.04, 0.0], [0.4, 0.6, 0.0], [0.3, 0.7, 0.0]])
    current = torch.tensor([0.95, 0.9, 0.5])
    assert torch.equal(class_thresholds(probs, current, 0, 0.95), torch.tensor([0.95, 0.6, 0.5]))
    # Nothing of the largest class is selected: everything of the others is.
    assert torch.equal(class_thresholds(probs, current, 2, 0.95), torch.tensor([0.95, 0.6, 0.95]))


def test_weights_are_inverse_counts_in_the_limit_and_equal_without_smoothing() -> None:
    counts = torch.tensor([10.0, 20.0, 40.0], dtype=torch.float64)
    inverse = 1 / counts
    near = smoothed_weights(counts, 1 - 1e-9)
    assert torch.allclose(near, inverse / inverse.mean())
    assert torch.equal(smoothed_weights(counts, 0), torch.ones(3, dtype=torch.float64))
    assert torch.equal(smoothed_weights(counts * 3, None), smoothed_weights(counts * 3, 1 - 1 / 70))
    assert torch.equal(smoothed_weights(torch.zeros(3), None), torch.ones(3))
    assert smoothed_weights(torch.tensor([0.0, 5.0]), 0.999).isfinite().all()
