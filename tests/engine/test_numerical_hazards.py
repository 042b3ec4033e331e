"""Each test is one way in which the published formulas go wrong when typed in naively."""

from __future__ import annotations

import math
import sys
from typing import get_args

import pytest
import torch
from loss_forms import fixmatch_loss, l2_consistency, pair_loss, pair_statistics
from ssl_toolkit_simple import pair_weights
from ssl_toolkit_simple.pair_loss import Distance
from torch import Tensor, nn

from ssl_toolkit import EMA, ops

DISTANCES = get_args(Distance)
every_distance = pytest.mark.parametrize("distance", DISTANCES)


def random_logits(rows: int = 6, classes: int = 5, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return scale * torch.randn(rows, classes, generator=generator)


def gradient(loss: Tensor, at: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(loss, at)
    assert result.isfinite().all()
    return result


# --- zeros --------------------------------------------------------------------------------------


def test_sharpen_keeps_zeros_with_a_finite_gradient() -> None:
    probs = torch.tensor([[0.6, 0.4, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    sharpened = ops.sharpen(probs, 2.0)
    assert torch.equal(sharpened == 0, probs == 0)
    assert gradient(sharpened[:, 0].sum(), probs)[0, 0] > 0


@every_distance
def test_pair_loss_of_zero_probabilities_has_a_finite_gradient(distance: Distance) -> None:
    # A difference of 400 makes softmax exactly one-hot in float32.
    logits = torch.tensor([[400.0, 0.0], [0.0, 400.0], [400.0, 0.0]], requires_grad=True)
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.98, 0.02]])
    loss = pair_loss(logits, targets, 0.95, 0.9, distance)
    assert loss.isfinite()
    assert loss > 0
    gradient(loss, logits)


def test_l2_distance_of_equal_rows_has_a_zero_gradient() -> None:
    logits = torch.tensor([[400.0, 0.0], [400.0, 0.0]], requires_grad=True)
    loss = pair_loss(logits, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), 0.95, 0.9, "l2")
    assert loss == 0
    assert gradient(loss, logits).count_nonzero() == 0


def test_l2_distance_keeps_small_differences() -> None:
    # ||q||² - 2 q·p + ||p||² would round 1e-4 away in float32, gradient and all.
    targets = torch.tensor([[0.97, 0.03], [0.97, 0.03]])
    shifted = torch.tensor([[0.9701, 0.0299], [0.9701, 0.0299]])
    loss = pair_loss(shifted.log(), targets, 0.95, 0.9, "l2", confidence_weighted=False)
    torch.testing.assert_close(loss, torch.tensor(2 * math.sqrt(2) * 1e-4), rtol=2e-3, atol=0)


def test_cross_entropy_of_a_zero_probability_is_finite() -> None:
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    wrong = ops.soft_cross_entropy(logits, torch.tensor([[0.0, 1.0]]))
    assert wrong.item() == 1000
    assert gradient(wrong.sum(), logits).tolist() == [[1.0, -1.0]]
    right = ops.soft_cross_entropy(logits, torch.tensor([[1.0, 0.0]]))
    assert right.item() == 0
    assert gradient(right.sum(), logits).tolist() == [[0.0, 0.0]]


# --- masks --------------------------------------------------------------------------------------


@every_distance
def test_a_masked_row_does_not_leak(distance: Distance) -> None:
    # Row 2 is unsure and its logits are extreme: 0 · (its term) must be 0, not NaN.
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [1e30, -1e30]], requires_grad=True)
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    whole = pair_loss(logits, targets, 0.95, 0.9, distance) * 3  # 3 pairs, then 1
    torch.testing.assert_close(whole, pair_loss(logits[:2], targets[:2], 0.95, 0.9, distance))
    assert gradient(whole, logits)[2].count_nonzero() == 0

    loss = l2_consistency(logits, targets, 0.95)
    assert gradient(loss, logits)[2].count_nonzero() == 0
    weak = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 0.0]])
    loss, _ = fixmatch_loss(weak, logits, 0.95)
    assert gradient(loss, logits)[2].count_nonzero() == 0


def test_nothing_passes() -> None:
    logits = random_logits().requires_grad_()
    uniform = torch.full((6, 5), 0.2)
    losses = [pair_loss(logits, uniform, 0.95, 0.9, distance) for distance in DISTANCES]
    losses += [l2_consistency(logits, uniform, 0.95), fixmatch_loss(uniform, logits, 0.95)[0]]
    for loss in losses:
        assert loss.item() == 0
        assert loss.requires_grad
        assert gradient(loss, logits).count_nonzero() == 0


@pytest.mark.parametrize("rows", [0, 1])
@every_distance
def test_pair_loss_without_pairs(rows: int, distance: Distance) -> None:
    logits = random_logits(rows).requires_grad_()
    targets = torch.eye(5)[:rows]
    loss = pair_loss(logits, targets, 0.95, 0.9, distance)
    assert loss.item() == 0
    assert gradient(loss, logits).count_nonzero() == 0
    assert [share.item() for share in pair_statistics(targets, 0.95, 0.9)] == [0, 0, 0]


# --- precision ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_raised(dtype: torch.dtype) -> None:
    logits = random_logits().to(dtype)
    targets = random_logits(scale=8).softmax(dim=-1)
    tiny = torch.tensor([[1e-4, 1.0]], dtype=dtype)  # squares to 0 in float16
    assert ops.sharpen(tiny, 0.5)[0, 0] > 0
    results = [
        ops.average_and_sharpen(logits[None], 0.5),
        ops.soft_cross_entropy(logits, targets),
        l2_consistency(logits, targets),
        fixmatch_loss(logits, logits, 0.5)[0],
        *(pair_loss(logits, targets, 0.5, 0.5, distance) for distance in DISTANCES),
    ]
    wide = logits.float()
    expected = [
        ops.average_and_sharpen(wide[None], 0.5),
        ops.soft_cross_entropy(wide, targets),
        l2_consistency(wide, targets),
        fixmatch_loss(wide, wide, 0.5)[0],
        *(pair_loss(wide, targets, 0.5, 0.5, distance) for distance in DISTANCES),
    ]
    for result, reference in zip(results, expected, strict=True):
        assert result.dtype == torch.float32
        assert torch.equal(result, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    logits = random_logits(40).to(dtype).requires_grad_()
    targets = random_logits(40, scale=8).to(dtype).softmax(dim=-1)

    def results() -> list[Tensor]:
        losses = [pair_loss(logits, targets, 0.5, 0.5, distance) for distance in DISTANCES]
        losses += [l2_consistency(logits, targets, 0.5), *pair_statistics(targets, 0.5, 0.5)]
        losses += [ops.soft_cross_entropy(logits, targets), *pair_weights(targets, 0.5, 0.5)]
        return [*losses, ops.average_and_sharpen(logits[None], 0.5), gradient(losses[0], logits)]

    expected = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = results()
    for value, reference in zip(result, expected, strict=True):
        assert value.dtype == reference.dtype
        assert torch.equal(value, reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_are_exact(dtype: torch.dtype) -> None:
    """0.95 is not above 0.95 in either precision, though float32 rounds it down."""

    def passing(confidence: float) -> tuple[bool, bool, bool]:
        targets = torch.tensor([[confidence, 1 - confidence]] * 2, dtype=dtype)
        logits = torch.zeros(2, 2, dtype=dtype)
        return (
            bool(l2_consistency(logits, targets, 0.95) > 0),
            bool(pair_loss(logits, targets, 0.95, 0.9) > 0),
            bool(pair_statistics(targets, 0.95, 0.9)[0] > 0),
        )

    assert passing(0.95) == (False, False, False)
    assert passing(0.9501) == (True, True, True)  # bfloat16 and float16 can't tell these apart
    assert passing(0.9499) == (False, False, False)
    # FixMatch accepts equality; equal logits of two classes are exactly 0.5 each.
    assert fixmatch_loss(torch.zeros(1, 2, dtype=dtype), torch.zeros(1, 2), 0.5)[1] == 1
    # Disjoint but for one class: the similarity is exactly sqrt(0.25) = 0.5.
    targets = torch.tensor([[1.0, 0.0], [0.25, 0.75]], dtype=dtype)
    assert pair_statistics(targets, 0.0, 0.5)[1] == 0
    assert pair_statistics(targets, 0.0, 0.499)[1] == 1


@pytest.mark.parametrize("temperature", [0.04, 0.01, 1e-3, 1e-30, 1e-300])
def test_sharpen_at_low_temperature(temperature: float) -> None:
    # 0.01 ** 25 underflows in float32: the naive formula gives 0 / 0 on a flat row.
    probs = torch.full((2, 100), 0.01)
    probs[1, 3] = 0.02
    probs = probs / probs.sum(dim=-1, keepdim=True)
    sharpened = ops.sharpen(probs, temperature)
    torch.testing.assert_close(sharpened.sum(dim=-1), torch.ones(2))
    torch.testing.assert_close(sharpened[0], torch.full((100,), 0.01))
    assert sharpened[1, 3] > 0.999


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_sharpen_refuses_other_temperatures(temperature: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ops.sharpen(torch.tensor([0.5, 0.5]), temperature)


def test_ema_of_half_precision_keeps_its_increments() -> None:
    module = nn.Linear(1, 1, bias=False).half()
    nn.init.ones_(module.weight)
    ema = EMA(module, 0.999)
    nn.init.constant_(module.weight, 2)
    for _ in range(100):
        ema.update(module)
    # 1.001 is below float16's spacing at 1 once it is added to in steps of less than 1e-3.
    torch.testing.assert_close(
        next(ema.module.parameters()).detach(), torch.tensor([[2 - 0.999**100]])
    )


# --- memory, ties, chunks -----------------------------------------------------------------------


@every_distance
def test_pair_loss_never_holds_every_difference(
    distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, targets = random_logits(48, 10), random_logits(48, 10, 8).softmax(dim=-1)
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():
        whole = pair_loss(logits, targets, 0.5, 0.5, distance)
    assert 48 * 48 <= largest < 48 * 48 * 2

    monkeypatch.setattr(sys.modules["ssl_toolkit_simple.pair_loss"], "_L2_ELEMENTS", 48 * 10 * 5)
    torch.testing.assert_close(pair_loss(logits, targets, 0.5, 0.5, distance), whole)


def test_a_tie_is_the_lowest_class() -> None:
    strong = torch.tensor([[3.0, 2.0, 1.0]])
    for weak, label in (([1.0, 1.0, 1.0], 0), ([0.0, 5.0, 5.0], 1)):
        loss, _ = fixmatch_loss(torch.tensor([weak]), strong, 0.0)
        torch.testing.assert_close(loss, -strong.log_softmax(dim=-1)[0, label])


# --- shapes that can't be -----------------------------------------------------------------------


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="views, N, classes"):
        ops.average_and_sharpen(torch.zeros(2, 3), 0.5)
    with pytest.raises(ValueError, match="one length"):
        ops.interleave([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(ValueError, match="5 rows"):
        ops.interleave_rows(torch.zeros(5), 2)
    with pytest.raises(ValueError, match="unknown distance"):
        pair_loss(torch.zeros(2, 2), torch.zeros(2, 2), 0.5, 0.5, "cosine")  # type: ignore[arg-type]
