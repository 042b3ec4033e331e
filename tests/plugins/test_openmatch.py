"""OpenMatch where the comparison with plain loops does not reach."""

from __future__ import annotations

import torch
from ssl_toolkit_fixmatch import FixMatch, OpenMatch
from ssl_toolkit_fixmatch.openmatch import outlier_scores
from toy_context import CLASSES, POOL, FakeContext, build, make_batch, objective, toy_images


def test_an_outlier_score_is_that_of_the_predicted_class() -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    open_logits = torch.tensor([[0.0, 9.0, 2.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    odds = torch.tensor([-2.0, 0.0])
    torch.testing.assert_close(outlier_scores(logits, open_logits), odds.sigmoid())


def test_inliers_are_selected_after_the_warmup_only() -> None:
    algorithm = build(OpenMatch, warmup_fraction=0.5, scan_interval=5)
    algorithm.open_head.weight.data[CLASSES:] += 10 * algorithm.open_head.weight[:CLASSES]
    pool = toy_images()[2].float()
    for step, selects in ((45, False), (50, True)):
        ctx = FakeContext(step=step)
        ctx.averages["open_head"] = algorithm.open_head
        algorithm.scan(iter([]), iter([(torch.arange(POOL), pool)]), ctx)
        assert bool(algorithm.inliers.any()) == selects
    with torch.no_grad():
        output = ctx.teacher_net(pool)
        expected = outlier_scores(output.logits, algorithm.open_head(output.features)) < 0.5
    assert torch.equal(algorithm.inliers, expected)


def test_only_inliers_have_pseudo_labels() -> None:
    algorithm = build(OpenMatch, confidence_threshold=0.0)
    batch, ctx = make_batch(algorithm), FakeContext()
    algorithm.inliers[batch.unlabeled_indices[:3]] = True
    inliers = algorithm.inliers[batch.unlabeled_indices]
    output = algorithm.step(batch, ctx)
    assert output.pseudo_labels is not None
    assert torch.equal(output.pseudo_labels.mask, inliers)
    # The loss is their mean, as that of FixMatch on a batch of inliers.
    algorithm.inliers.fill_(True)
    every = algorithm.step(batch, FakeContext()).losses["unsupervised"].value
    assert output.losses["unsupervised"].value != every


def test_a_batch_without_inliers_trains_the_other_losses() -> None:
    algorithm = build(OpenMatch)
    ctx = FakeContext()
    output = algorithm.step(make_batch(algorithm), ctx)
    assert output.losses["unsupervised"].value == 0
    objective(output).backward()
    assert algorithm.open_head.weight.grad is not None
    assert all(p.grad is None or p.grad.isfinite().all() for p in ctx.live.parameters())


def test_with_every_image_an_inlier_its_pseudo_labels_are_those_of_fixmatch() -> None:
    algorithm = build(OpenMatch, confidence_threshold=0.3)
    batch = make_batch(algorithm)
    algorithm.inliers.fill_(True)
    ours = algorithm.step(batch, FakeContext(normalized=False))
    theirs = build(FixMatch, confidence_threshold=0.3).step(batch, FakeContext(normalized=False))
    for name in ("supervised", "unsupervised"):
        torch.testing.assert_close(ours.losses[name].value, theirs.losses[name].value)
