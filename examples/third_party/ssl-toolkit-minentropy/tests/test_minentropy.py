"""Entropy minimization keeps the contract, computes what the paper says, and trains."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from ssl_toolkit_minentropy import MinEntropy, entropy

import ssl_toolkit
from ssl_toolkit.testing import parametrize_with_checks


@parametrize_with_checks([MinEntropy])
def test_contract(check):
    check()


def test_entropy_by_hand():
    logits = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    expected = [-0.75 * math.log(0.75) - 0.25 * math.log(0.25), math.log(2)]
    torch.testing.assert_close(entropy(logits), torch.tensor(expected))


def test_a_certain_prediction_has_no_entropy_and_no_gradient():
    logits = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    value = entropy(logits).sum()
    value.backward()
    assert value == 0
    assert not logits.grad.any()


def test_descending_the_entropy_moves_a_prediction_to_its_nearest_class():
    logits = torch.tensor([[0.4, 0.1, 0.0]], requires_grad=True)
    entropy(logits).sum().backward()
    assert logits.grad.argmin() == 0


def test_it_trains_by_its_name(installed, tmp_path):
    keys = {"algo": "minentropy", "dataset": "digits", "steps": 6, "eval_every": 3}
    run = ssl_toolkit.train(keys | {"output": tmp_path / "run"})
    assert run.summary.algorithm == "minentropy"
    assert run.summary.status == "completed"


@pytest.mark.parametrize(("step", "weight"), [(0, 0.0), (5, 0.5), (10, 1.0), (99, 1.0)])
def test_the_weight_rises_over_its_share_of_the_run(step, weight):
    task = ssl_toolkit.TaskInfo(2, 4, (1, 1), 9, 100)
    options = MinEntropy.Config(entropy_weight=1, rampup_fraction=0.1)
    images = torch.zeros(1, 2, 3, 4, 4)
    batch = SimpleNamespace(labels=torch.tensor([0, 1]), labeled_weak=images, unlabeled_weak=images)
    ctx = SimpleNamespace(step=step, max_steps=100, model=lambda images: images[:, 0, :2, 0])
    output = MinEntropy(options, task).step(batch, ctx)
    assert output.losses["entropy"].weight == pytest.approx(weight)
