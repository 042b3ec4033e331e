"""FixMatch with adaptive thresholds where the comparison with plain loops does not reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ssl_toolkit_adaptive import (
    AdaMatch,
    Dash,
    DeFixMatch,
    FlexMatch,
    FreeMatch,
)
from toy_context import (
    CLASSES,
    POOL,
    FakeContext,
    build,
    make_batch,
    objective,
    toy_images,
)

from ssl_toolkit import Loss, PseudoLabels, StepOutput
from ssl_toolkit.engine.step_metrics import StepRecorder


def test_freematch_without_a_pseudo_label_has_no_fairness_loss() -> None:
    algorithm = build(FreeMatch)
    batch = make_batch(algorithm)
    ctx = FakeContext()
    algorithm.global_threshold.fill_(2000)
    output = algorithm.step(batch, ctx)
    assert output.pseudo_labels is not None
    assert not output.pseudo_labels.mask.any()
    assert output.losses["fairness"].value == 0
    objective(output).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in ctx.live.parameters())


def test_thresholds_of_flexmatch_rise_without_images_that_are_not_drawn() -> None:
    algorithm, ctx = build(FlexMatch), FakeContext()
    algorithm.learned[: POOL // 2] = torch.arange(POOL // 2) % CLASSES  # the others: none yet
    batch = make_batch(algorithm)
    batch = replace(batch, unlabeled_indices=torch.zeros_like(batch.unlabeled_indices))
    ctx.pool_mask[POOL // 2 :] = False
    output = algorithm.step(batch, ctx)
    counts = torch.bincount(torch.arange(POOL // 2) % CLASSES, minlength=CLASSES)
    status = counts / counts.max()
    assert output.metrics["mean_threshold"] == pytest.approx((0.95 * status / (2 - status)).mean())


def test_weights_of_pseudo_labels_weight_their_metrics() -> None:
    recorder = StepRecorder((2,) * CLASSES)
    probs = torch.eye(CLASSES)[[0, 0, 1]]
    weights = torch.tensor([1.0, 0.5, 0.25])
    output = StepOutput(
        {"supervised": Loss(torch.zeros(()))},
        PseudoLabels(probs, torch.tensor([True, True, False]), weights),
    )
    recorder.add(1, torch.zeros(()), output, torch.tensor([0, 1, 1]))
    row = recorder.flush()
    assert row["train.coverage"] == pytest.approx(0.5)
    assert row["train.pseudo_label_accuracy"] == pytest.approx(1 / 1.5)


def test_adamatch_interpolates_logits_of_two_forwards() -> None:
    """With BatchNorm, the labeled images have other logits alone than with the unlabeled ones."""
    algorithm, ctx = build(AdaMatch), FakeContext()
    batch = make_batch(algorithm)
    labeled = torch.cat([batch.labeled_weak[0], batch.labeled_strong[0]])
    lam = torch.rand(2, 4, CLASSES, generator=torch.Generator().manual_seed(3)).flatten(0, 1)
    everything = torch.cat([labeled, batch.unlabeled_weak[0], batch.unlabeled_strong[0]])
    alone, joint = ctx.live(labeled).logits, ctx.live(everything).logits[: len(labeled)]
    assert (alone - joint).abs().max() > 0.01
    output = algorithm.step(batch, ctx)
    expected = torch.nn.functional.cross_entropy(
        lam * joint + (1 - lam) * alone, batch.labels.repeat(2)
    )
    torch.testing.assert_close(output.losses["supervised"].value, expected)
    count = len(everything)
    assert ctx.calls == [("forward", count, True), ("forward", len(labeled), False)]


def test_dash_without_a_warmup_measures_its_first_threshold_at_the_start() -> None:
    algorithm = build(Dash, warmup_fraction=0)
    assert algorithm.scan_every == algorithm.task.max_steps
    ctx, (images, labels, _) = FakeContext(step=0), toy_images()
    algorithm.scan(iter([(torch.arange(8), images.float(), labels)]), iter([]), ctx)
    assert algorithm.first_threshold > 0.1
    assert "unsupervised" in algorithm.step(make_batch(algorithm), ctx).losses


def test_the_loss_of_defixmatch_vanishes_if_labeled_and_unlabeled_images_are_the_same() -> None:
    algorithm = build(DeFixMatch, unlabeled_ratio=1, confidence_threshold=0.3)
    batch = make_batch(algorithm)
    batch = replace(batch, unlabeled_weak=batch.labeled_weak, unlabeled_strong=batch.labeled_strong)
    losses = algorithm.step(batch, FakeContext(normalized=False)).losses
    assert losses["unsupervised"].value.detach().abs() < 1e-6
