"""Second networks of an algorithm: like the run's own, and trained and resumed with it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrained_runs import keys, make_images
from short_runs import configure, rows, stop_after
from torch import nn
from torch.nn import functional as F

from ssl_toolkit import (
    Algorithm,
    Batch,
    Context,
    Loss,
    Options,
    StepOutput,
    TaskInfo,
    Views,
    option,
    register_algorithm,
)
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.runs import execute
from ssl_toolkit.runs import train as runs
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.testing import check_plugin


@register_algorithm("pair")
class Pair(Algorithm):
    """Trains the run's network and two others on the labels, toward their mean."""

    class Config(Options):
        pretrained: bool = option(False, help="start the second one from the weights of the run")

    config: Config

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.second = task.new_model(pretrained=self.config.pretrained)
        self.third = task.new_model()

    def views(self) -> Views:
        return Views(labeled_weak=1)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        images = batch.labeled_weak[0]
        logits = torch.stack(
            [
                ctx.model(images).float(),
                self.second(images).logits.float(),
                self.third(images).logits.float(),
            ]
        )
        mean = logits.mean(dim=0).detach()
        return StepOutput(
            {
                "supervised": Loss(F.cross_entropy(logits[0], batch.labels)),
                "others": Loss(F.cross_entropy(logits[1:].mean(dim=0), batch.labels)),
                "distance": Loss((logits - mean).square().mean(), 0.1),
            }
        )


def state_of(module: nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    state = module.state_dict()
    return {key: value.clone() for key, value in state.items() if key.startswith(prefix)}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_second_network_is_of_the_run_s_kind_with_other_weights() -> None:
    experiments = [prepare(configure(algo="pair", seed=seed)) for seed in (3, 3, 4)]
    first, again, other = (e.trainer for e in experiments)
    algorithm, network = first.algorithm, first.classifier
    assert isinstance(algorithm, Pair)
    assert algorithm.task.image_size == 8
    assert (algorithm.task.batch_size, algorithm.task.processes) == (8, 1)
    for second in (algorithm.second, algorithm.third):
        shapes = {key: value.shape for key, value in second.state_dict().items()}
        assert shapes == {key: value.shape for key, value in network.state_dict().items()}
        assert torch.equal(second.mean, network.mean)  # type: ignore[arg-type]
        assert torch.equal(second.std, network.std)  # type: ignore[arg-type]
        assert not equal(state_of(second, "backbone"), state_of(network, "backbone"))
    assert not equal(state_of(algorithm.second, ""), state_of(algorithm.third, ""))
    assert equal(algorithm.state_dict(), again.algorithm.state_dict())
    assert not equal(algorithm.state_dict(), other.algorithm.state_dict())
    pickle.loads(pickle.dumps(algorithm.task)).new_model()


def test_the_first_network_is_that_of_an_algorithm_with_one() -> None:
    states = [prepare(configure(algo=a)).trainer.classifier for a in ("pair", "supervised")]
    assert equal(*(state_of(network, "") for network in states))


def test_a_second_network_is_trained_and_resumed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = runs.train(configure(algo="pair", output=str(tmp_path / "whole"), save_every=3))
    part = tmp_path / "part"
    monkeypatch.setattr(execute, "_stop_reason", stop_after(2))
    runs.train(configure(algo="pair", output=str(part), save_every=3))
    monkeypatch.undo()
    assert resume(part).summary.status == "completed"
    assert rows(part) == rows(whole.folder)
    states = [
        torch.load(folder / "checkpoints" / "last.pt", weights_only=True)["algorithm_state"]
        for folder in (whole.folder, part)
    ]
    assert equal(*states)
    initial = prepare(configure(algo="pair")).trainer.algorithm.state_dict()
    moved = {key for key in initial if not torch.equal(initial[key], states[0][key])}
    assert {"second.head.weight", "third.head.weight"} < moved
    assert any(key.startswith("second.backbone.") for key in moved)


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_a_second_network_starts_from_the_weights_of_the_run(freeze: str, tmp_path: Path) -> None:
    make_images(tmp_path / "images")
    changes: dict[str, Any] = {"algo": "pair", "pair": {"pretrained": True}}
    changes["model"] = {"freeze": freeze, "feature_views": 0}
    trainer = prepare(validate([Layer("test", keys(tmp_path, **changes))])).trainer
    algorithm, network = trainer.algorithm, trainer.classifier
    assert isinstance(algorithm, Pair)
    expected = state_of(network, "backbone")
    assert equal(state_of(algorithm.second, "backbone"), expected)
    # A frozen backbone of random weights would be of no use.
    assert equal(state_of(algorithm.third, "backbone"), expected) == (freeze == "backbone")
    assert torch.equal(algorithm.second.mean, network.mean)  # type: ignore[arg-type]
    second: Any = algorithm.second
    assert second.head.weight.requires_grad
    frozen = not any(p.requires_grad for p in second.backbone.parameters())
    assert frozen == (freeze == "backbone")


def test_two_networks_follow_the_contract() -> None:
    check_plugin(Pair)


def test_a_task_without_a_factory_creates_no_models() -> None:
    with pytest.raises(RuntimeError, match="model_factory"):
        TaskInfo(2, 8, (1, 1), 4, 1).new_model()
