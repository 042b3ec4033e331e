"""AdaMatch keeps the contract, computes what the paper says, and trains."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ssl_toolkit_adamatch import AdaMatch, align, warm_up

import ssl_toolkit
from ssl_toolkit import TaskInfo
from ssl_toolkit.testing import parametrize_with_checks


@parametrize_with_checks([AdaMatch])
def test_contract(check):
    check()


def test_alignment_by_hand():
    probs = torch.tensor([[0.6, 0.4]])
    aligned = align(probs, torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(aligned, torch.tensor([[1 / 3, 2 / 3]]), atol=1e-5, rtol=0)


def test_equal_distributions_change_nothing():
    probs = torch.rand(5, 3).softmax(dim=-1)
    torch.testing.assert_close(align(probs, torch.ones(3) / 3, torch.ones(3) / 3), probs)


@pytest.mark.parametrize("processes", [1, 2])
def test_threshold_and_running_means_by_hand(processes):
    task = TaskInfo(
        num_classes=2, feature_dim=4, label_counts=(1, 1), unlabeled_count=9, max_steps=10
    )
    options = AdaMatch.Config(relative_threshold=0.5, distribution_decay=0.75)
    algorithm = AdaMatch(options, task)
    labeled = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log()
    unlabeled = torch.tensor([[0.1, 0.9]]).log()
    # Processes with equal shares of a batch have the same means as one.
    ctx = SimpleNamespace(all_reduce_sum=lambda value: processes * value)
    probs, threshold = algorithm._pseudo_labels(labeled, unlabeled, ctx)
    assert float(threshold) == pytest.approx(0.5 * (0.8 + 0.6) / 2)
    # A quarter of the way from uniform to the means [0.7, 0.3] and [0.1, 0.9].
    torch.testing.assert_close(algorithm.labeled_classes, torch.tensor([0.55, 0.45]))
    torch.testing.assert_close(algorithm.unlabeled_classes, torch.tensor([0.4, 0.6]))
    scaled = torch.tensor([0.1 * 0.55 / 0.4, 0.9 * 0.45 / 0.6])
    torch.testing.assert_close(probs[0], scaled / scaled.sum(), atol=1e-5, rtol=0)


def test_lambda_is_drawn_for_the_whole_batch_and_shared_out():
    task = TaskInfo(
        num_classes=3, feature_dim=4, label_counts=(1, 1, 1), unlabeled_count=9, max_steps=10
    )
    algorithm = AdaMatch(AdaMatch.Config(), task)

    def drawn(labels, rank, size):
        ctx = SimpleNamespace(
            generator=torch.Generator().manual_seed(0),
            all_gather=lambda labels: labels.repeat(size),
            local_shard=lambda value, dim: value.chunk(size, dim)[rank],
        )
        batch = SimpleNamespace(labels=torch.zeros(labels, dtype=torch.int64))
        return algorithm._lambda(batch, ctx)

    whole = drawn(labels=8, rank=0, size=1)
    assert whole.shape == (16, 3)
    assert 0 <= float(whole.min()) < float(whole.max()) < 1
    for rank in range(2):
        part = whole.view(2, 8, 3)[:, 4 * rank : 4 * rank + 4].flatten(0, 1)
        torch.testing.assert_close(drawn(labels=4, rank=rank, size=2), part)


@pytest.mark.parametrize(("step", "weight"), [(0, 0.0), (25, 0.5), (50, 1.0), (99, 1.0)])
def test_the_unsupervised_loss_warms_up_over_half_of_the_run(step, weight):
    assert warm_up(SimpleNamespace(step=step, max_steps=100)) == pytest.approx(weight)


def test_it_trains_by_its_name(installed, tmp_path):
    keys = {"algo": "adamatch", "dataset": "digits", "steps": 6, "eval_every": 3}
    run = ssl_toolkit.train(keys | {"output": tmp_path / "run"})
    assert run.summary.algorithm == "adamatch"
    assert run.summary.status == "completed"
