"""The loop and what it stands on: purity of the draws, resuming, precision, faults."""

from __future__ import annotations

import ctypes
import json
import math
import resource
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from short_runs import configure, rows, stop_after
from sklearn import metrics as sklearn_metrics
from torch import nn

from ssl_toolkit import (
    EMA,
    Algorithm,
    AugmentationParams,
    Augmenter,
    Backbone,
    Batch,
    ConfigError,
    Context,
    Loss,
    ModelError,
    Options,
    StepOutput,
    TrainingError,
    Views,
    convergence_step,
    register_algorithm,
    register_augmenter,
    register_backbone,
)
from ssl_toolkit.engine.devices import choose_device, choose_precision
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.engine.finite_checks import all_finite
from ssl_toolkit.runs import execute
from ssl_toolkit.runs import train as runs
from ssl_toolkit.runs.predictions import predict_parts, score_parts
from ssl_toolkit.runs.resume import resume
from ssl_toolkit.runs.scoring import scores


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    return {**state["model"], **{f"ema.{k}": v for k, v in state["ema"]["module"].items()}}


# --- plugins of these tests ------------------------------------------------------------------


@register_backbone("constant_first")
class ConstantFirst(Backbone):
    """Always answers class 0; one weight that takes a gradient."""

    feature_dim = 1

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(1, 2, 3)).unsqueeze(1) * self.weight

    def classifier(self, num_classes: int) -> nn.Module:
        class Head(nn.Module):
            def forward(self, features: torch.Tensor) -> torch.Tensor:
                first = torch.full_like(features, 9.0)
                return (
                    torch.cat([first, features.expand(-1, num_classes - 1) * 0], dim=1)
                    + features * 0
                )

        return Head()


@register_augmenter("watching")
class Watching(Augmenter):
    """Leaves images alone and remembers the feedback it was given."""

    wants_feedback = True

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__(config, flip=flip)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        return {"number": torch.rand(count, generator=generator)}

    def transform(self, images: torch.Tensor, draws: AugmentationParams) -> torch.Tensor:
        return images

    def feedback(
        self, draws: AugmentationParams, probs: torch.Tensor, labels: torch.Tensor
    ) -> None:
        assert probs.shape == (len(labels), 10)
        assert len(draws["number"]) == len(labels)
        torch.testing.assert_close(probs.sum(dim=1), torch.ones(len(labels)))
        self.seen += 1


@register_algorithm("everything")
class Everything(Algorithm):
    """Uses every part of the context."""

    def __init__(self, config: Options, task: Any) -> None:
        super().__init__(config, task)
        self.own_head = nn.Linear(task.feature_dim, 4)
        self.register_buffer("scanned", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("pseudo", torch.full((task.unlabeled_count,), -1))

    def views(self) -> Views:
        return Views(labeled_strong=1, unlabeled_weak=1, unlabeled_strong=2, unlabeled_ratio=2)

    @property
    def scan_every(self) -> int:
        return 2

    def scan(self, labeled: Any, unlabeled: Any, ctx: Context) -> None:
        for indices, images in unlabeled:
            self.pseudo[indices] = ctx.teacher(images).argmax(dim=1)
            self.scanned[0] += len(indices)
        for indices, images, labels in labeled:
            assert len(indices) == len(images) == len(labels)
            self.scanned[1] += len(indices)
        self.scanned[2] += 1

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        u = batch.unlabeled_weak[0]
        assert batch.unlabeled_labels is None
        running = [b.clone() for n, b in self._statistics(ctx)]
        gradient = ctx.input_gradient(u, lambda p: p.logits.logsumexp(dim=1).sum())
        ctx.forward(u, update_statistics=False)
        assert all(
            torch.equal(a, b) for a, (_, b) in zip(running, self._statistics(ctx), strict=True)
        )
        assert gradient.shape == u.shape
        assert not gradient.requires_grad
        features, logits = ctx.forward(batch.labeled_weak[0])
        teacher = ctx.teacher_forward(u)
        assert teacher.features.shape == (len(u), self.task.feature_dim)
        assert ctx.all_reduce_sum(torch.ones(1)).item() == 1
        turn = torch.zeros(len(features), dtype=torch.int64)
        return StepOutput(
            {
                "supervised": Loss(nn.functional.cross_entropy(logits, batch.labels)),
                "rotation": Loss(nn.functional.cross_entropy(self.own_head(features), turn), 0.5),
            }
        )

    def _statistics(self, ctx: Any) -> list[tuple[str, torch.Tensor]]:
        return [(n, b) for n, b in ctx._classifier.named_buffers() if "running" in n]


@register_algorithm("exploding")
class Exploding(Algorithm):
    """A loss that is not finite from the fifth step on."""

    def views(self) -> Views:
        return Views()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        loss = nn.functional.cross_entropy(ctx.model(batch.labeled_weak[0]), batch.labels)
        bad = loss * (math.nan if ctx.step >= 4 else 1.0)
        return StepOutput({"supervised": Loss(loss), "pair": Loss(bad, 2.0)})


# --- EMA and scores ----------------------------------------------------------------------------


def test_ema_warmup_follows_the_formula() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    ema = EMA(module, 0.5, warmup=True)
    nn.init.ones_(module.weight)
    shadow = 0.0
    for t in range(20):
        ema.update(module)
        d = min(0.5, (1 + t) / (10 + t))
        shadow = d * shadow + (1 - d)
        assert ema.module.weight.item() == pytest.approx(shadow, abs=1e-6)


def test_ema_of_half_precision_keeps_small_increments() -> None:
    module = nn.Linear(1, 1, bias=False).half()
    nn.init.ones_(module.weight)
    ema = EMA(module, 0.9999)
    nn.init.constant_(module.weight, 1.001)
    for _ in range(100):
        ema.update(module)
    assert ema.module.weight.dtype == torch.float32
    assert ema.module.weight.item() > 1.000005


def test_ema_refuses_a_decay_out_of_range() -> None:
    with pytest.raises(ValueError, match="decay"):
        EMA(nn.Linear(1, 1), 1.5)


def test_scores_equal_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(4), 200)
    labels = generator.integers(0, 3, 200)  # class 3 never occurs
    got = scores(probs.astype(np.float32), labels, "abcd")
    predicted = probs.argmax(1)
    assert got["accuracy"] == sklearn_metrics.accuracy_score(labels, predicted)
    assert got["count"] == 200
    per_class = sklearn_metrics.recall_score(
        labels, predicted, labels=[0, 1, 2], average=None, zero_division=0
    )
    assert got["balanced_accuracy"] == pytest.approx(per_class.mean())
    macro = sklearn_metrics.f1_score(
        labels, predicted, labels=range(4), average="macro", zero_division=0
    )
    assert got["macro_f1"] == pytest.approx(macro)
    assert got["nll"] == pytest.approx(
        sklearn_metrics.log_loss(labels, probs, labels=range(4)), rel=1e-6
    )
    assert got["per_class"]["d"] == {"accuracy": None, "count": 0}
    assert sum(one["count"] for one in got["per_class"].values()) == 200


def test_calibration_error_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]], dtype=np.float32)
    labels = np.array([0, 1, 1])
    # Bins of 1/15: two images at 0.9 (one right), one at 0.6 (right).
    expected = (abs(1.8 - 1) + abs(0.6 - 1)) / 3
    assert scores(probs, labels, "ab")["ece"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("steps", "accuracies", "expected"),
    [([10, 20, 30], [0.5, 0.949, 1.0], 30), ([10, 20, 30], [0.5, 0.95, 1.0], 20), ([], [], None)],
)
def test_convergence_step(steps: list[int], accuracies: list[float], expected: int | None) -> None:
    assert convergence_step(list(zip(steps, accuracies, strict=True))) == expected


# --- draws ---------------------------------------------------------------------------------------


def test_a_batch_depends_only_on_seed_and_number() -> None:
    first = prepare(configure(algo="simple")).trainer.batches
    again = prepare(configure(algo="simple")).trainer.batches
    again.draw(5)
    for number in (3, 0):
        a, b = first.draw(number), again.draw(number)
        assert a.extra == b.extra == {}
        for name in vars(a).keys() - {"extra"}:
            if getattr(a, name) is not None:
                assert torch.equal(getattr(a, name), getattr(b, name)), name
    other = prepare(configure(algo="simple", seed=1)).trainer.batches.draw(0)
    assert not torch.equal(first.draw(0).unlabeled_weak, other.unlabeled_weak)


def test_algorithms_share_images_order_and_draws() -> None:
    batches = {}
    for algo in ("simple", "mixmatch", "fixmatch", "supervised"):
        experiment = prepare(configure(algo=algo))
        batches[algo] = [experiment.trainer.batches.draw(n) for n in range(3)]
        batches[algo + " weights"] = experiment.trainer.classifier.state_dict()
    for n in range(3):
        simple, mixmatch, fixmatch = (batches[a][n] for a in ("simple", "mixmatch", "fixmatch"))
        assert torch.equal(simple.labeled_weak, mixmatch.labeled_weak)
        assert torch.equal(simple.labeled_weak, batches["supervised"][n].labeled_weak)
        assert torch.equal(simple.unlabeled_weak, mixmatch.unlabeled_weak)
        assert torch.equal(simple.labeled_weak, fixmatch.labeled_weak)
    order = torch.cat([b.unlabeled_indices for b in batches["simple"]])
    assert torch.equal(order, batches["fixmatch"][0].unlabeled_indices[: len(order)])
    for name, tensor in batches["simple weights"].items():
        assert torch.equal(tensor, batches["supervised weights"][name]), name


def test_ratios_share_the_order_and_the_first_draws() -> None:
    made = {
        ratio: prepare(configure(algo="fixmatch", fixmatch={"unlabeled_ratio": ratio}))
        for ratio in (1, 7)
    }
    few, many = (made[ratio].trainer.batches for ratio in (1, 7))
    size = len(few.draw(0).labels)
    for number in range(3):
        one, other = few.draw(number), many.draw(number)
        assert torch.equal(one.labeled_indices, other.labeled_indices)
        assert torch.equal(one.labeled_weak, other.labeled_weak)
    one, other = few.draw(0), many.draw(0)
    assert len(other.unlabeled_indices) == 7 * size
    assert torch.equal(one.unlabeled_indices, other.unlabeled_indices[:size])
    assert torch.equal(one.unlabeled_weak, other.unlabeled_weak[:, :size])
    strong = (one.unlabeled_strong - other.unlabeled_strong[:, :size]).abs()
    assert strong.max() < 1e-6
    # From the second batch on the images differ, and the draws of the first rows don't.
    assert not torch.equal(few.draw(1).unlabeled_indices, many.draw(1).unlabeled_indices[:size])
    assert few.digests(8) == many.digests(8)


def test_digests_are_those_of_what_two_algorithms_both_draw() -> None:
    algorithms = ("supervised", "mixmatch", "simple", "fixmatch")
    prepared = {algo: prepare(configure(algo=algo)) for algo in algorithms}
    digests = {algo: made.trainer.batches.digests(8) for algo, made in prepared.items()}
    assert digests["supervised"].keys() == {"labeled_order", "labeled_weak"}
    assert digests["fixmatch"].keys() - digests["mixmatch"].keys() == {"unlabeled_strong"}
    for one in digests.values():
        assert one.items() <= digests["fixmatch"].items()
    assert len({*digests["fixmatch"].values()}) == 5
    other = prepare(configure(algo="fixmatch", seed=1)).trainer.batches.digests(8)
    assert not {*other.values()} & {*digests["fixmatch"].values()}
    padded = configure(augment={"weak_options": {"padding_fraction": 0.4}})
    changed = prepare(padded).trainer.batches.digests(8)
    assert changed["labeled_order"] == digests["supervised"]["labeled_order"]
    assert changed["labeled_weak"] != digests["supervised"]["labeled_weak"]
    before = prepared["simple"].trainer.batches
    first = before.draw(0).unlabeled_strong
    before.digests(8)
    assert torch.equal(before.draw(0).unlabeled_strong, first)


def test_balanced_sampling_shows_classes_equally() -> None:
    batches = prepare(configure(sampler="balanced", num_labels=37)).trainer.batches
    labels = torch.cat([batches.draw(n).labels for n in range(10)])
    assert torch.bincount(labels, minlength=10).tolist() == [8] * 10


def test_only_algorithms_that_declare_it_get_hidden_labels() -> None:
    assert prepare(configure(algo="simple")).trainer.batches.draw(0).unlabeled_labels is None
    experiment = prepare(configure(algo="fully_supervised"))
    batch = experiment.trainer.batches.draw(0)
    truth = experiment.table.labels[experiment.split.unlabeled[batch.unlabeled_indices]]
    assert batch.unlabeled_labels is not None
    assert batch.unlabeled_labels.tolist() == truth.tolist()


def test_a_warm_up_as_long_as_the_run_is_reported() -> None:
    def warnings(steps: int, **schedule: Any) -> str:
        made = prepare(configure(algo="supervised", steps=steps, lr=0.01, schedule=schedule))
        return " ".join(made.warnings)

    messages = warnings(10, warmup_steps=90)
    assert "schedule.warmup_steps (90) is not below steps (10)" in messages
    assert "reaches 0.001 instead of 0.01" in messages
    assert "warmup_steps" in warnings(10, warmup_steps=10, name="cosine")
    assert warnings(10, warmup_steps=9) == warnings(10) == ""


# --- the loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["everything", "simple"])
def test_a_stopped_run_resumes_to_the_same_result(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"algo": algo, "log_every": 2}
    if algo == "simple":
        options["simple"] = {"strong_views": 2}
        options["optimizer"] = {"clip_norm": 1.0}
    through = runs.train(configure(**options, output=str(tmp_path / "through")))
    monkeypatch.setattr(execute, "_stop_reason", stop_after(3))
    stopped = runs.train(configure(**options, output=str(tmp_path / "stopped")))
    assert stopped.summary.status == "interrupted"
    monkeypatch.undo()
    resumed = resume(stopped.folder)
    assert resumed.summary.status == "completed"
    assert rows(resumed.folder) == rows(through.folder)
    first, second = weights(through.folder), weights(resumed.folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    timings = ("seconds", "images_per_second")
    assert through.summary.model_dump(exclude={*timings}) == resumed.summary.model_dump(
        exclude={*timings}
    )


def test_everything_of_the_context_works(tmp_path: Path) -> None:
    outcome = runs.train(
        configure(algo="everything", output=str(tmp_path / "run"), augment={"weak": "watching"})
    )
    state = torch.load(outcome.folder / "checkpoints" / "last.pt", weights_only=True)
    pool, labeled = outcome.summary.counts.unlabeled, outcome.summary.counts.labeled
    assert state["algorithm_state"]["scanned"].tolist() == [3 * pool, 3 * labeled, 3]
    assert (state["algorithm_state"]["pseudo"] >= 0).all()
    assert state["augmenters"][0]["seen"].item() == 6
    start = prepare(configure(algo="everything", augment={"weak": "watching"})).trainer.algorithm
    moved = state["algorithm_state"]["own_head.weight"] - start.state_dict()["own_head.weight"]
    assert moved.abs().max() > 0


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(TrainingError, match=r"'?pair'?.* step 5"):
        runs.train(configure(algo="exploding", output=str(folder), eval_every=3))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "pair" in summary["reason"]
    state = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    assert state["step"] == 3
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


def test_all_finite_detects_one_non_finite_number() -> None:
    module = nn.BatchNorm1d(3)
    assert all_finite(module)
    module.running_var[1] = 1e30
    assert all_finite(module)
    module.running_var[1] = math.inf
    assert not all_finite(module)


def test_accumulation_averages_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without BatchNorm two batches of 4 have the mean gradient of the same 8 images.
    def gradients(batch_size: int, accumulate: int) -> list[torch.Tensor]:
        config = configure(
            batch_size=batch_size,
            backbone="constant_first",
            augment={"weak": "none"},
            optimizer={"accumulation_steps": accumulate},
            classes=None,
        )
        trainer = prepare(config).trainer
        trainer.classifier.head = nn.Linear(1, 10)
        nn.init.constant_(trainer.classifier.head.weight, 0.3)
        nn.init.zeros_(trainer.classifier.head.bias)
        nn.init.ones_(trainer.classifier.backbone.weight)
        for number in range(accumulate):
            trainer._forward_backward(number, accumulate)
        return [p.grad for p in trainer.classifier.parameters() if p.grad is not None]

    for one, two in zip(gradients(8, 1), gradients(4, 2), strict=True):
        torch.testing.assert_close(one, two)


def test_without_ema_the_live_model_teaches_and_stays_in_train_mode(tmp_path: Path) -> None:
    config = configure(algo="simple", ema="off", simple={"strong_views": 1})
    trainer = prepare(config).trainer
    assert trainer.ema is None
    assert trainer.eval_model is trainer.classifier
    trainer.classifier.train()
    trainer._forward_backward(0, 1)
    assert trainer.classifier.training


def test_cosine_reaches_the_optimizer(tmp_path: Path) -> None:
    outcome = runs.train(
        configure(
            output=str(tmp_path / "run"),
            log_every=1,
            lr=0.5,
            optimizer={"name": "sgd", "backbone_lr": 0.25},
            schedule={"name": "cosine"},
        )
    )
    rates = [row["lr"] for row in rows(outcome.folder)]
    expected = [0.5 * math.cos(7 * math.pi * t / (16 * 6)) for t in range(6)]
    assert rates == pytest.approx(expected)


def test_constant_predictor_scores_its_class(tmp_path: Path) -> None:
    outcome = runs.train(configure(output=str(tmp_path / "run"), backbone="constant_first"))
    test = outcome.summary.test
    assert test is not None
    share = test.per_class["0"].count / test.count
    assert test.accuracy == pytest.approx(share)
    assert test.balanced_accuracy == pytest.approx(0.1)


def test_evaluation_does_not_depend_on_the_batch_size() -> None:
    experiment = prepare(configure())
    results = []
    for size in (1, 7, 1000):
        trainer = experiment.trainer
        trainer.settings = trainer.settings.model_copy(update={"eval_batch_size": size})
        predictions = predict_parts(replace(experiment, trainer=trainer))
        results.append(score_parts(predictions, experiment.classes))
    assert results[0]["test"].accuracy == results[1]["test"].accuracy
    assert results[0]["test"].nll == pytest.approx(results[2]["test"].nll, rel=1e-5)


def test_batch_of_one_with_batchnorm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch-size 1.*BatchNorm"):
        prepare(configure(batch_size=1))
    prepare(configure(batch_size=1, backbone="constant_first"))


# --- devices -------------------------------------------------------------------------------------


def test_unavailable_devices_are_refused() -> None:
    with pytest.raises(ModelError, match=r"gpuu.*auto, cpu, cuda"):
        choose_device("gpuu")
    with pytest.raises(ModelError, match="cuda:7"):
        choose_device("cuda:7")
    assert choose_device("cpu").type == "cpu"


def test_slow_precisions_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert choose_precision("fp32", cpu) == choose_precision("auto", cpu) == ("fp32", "")
    precision, warning = choose_precision("fp16", cpu)
    assert precision == "fp32"
    assert "fp16" in warning
    monkeypatch.setattr("ssl_toolkit.engine.devices.native_bfloat16", lambda: True)
    assert choose_precision("bf16", cpu) == ("bf16", "")


@pytest.mark.parametrize(("native", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_a_gpu_with_native_bfloat16_uses_it(
    native: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_precision("auto", torch.device("cuda", 0)) == (chosen, "")
    assert choose_precision("fp32", torch.device("cuda", 0)) == ("fp32", "")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the C library of GNU")
def test_a_step_reuses_the_memory_of_the_one_before() -> None:
    options = {"batch_size": 16, "image_size": 32, "log_every": 1, "steps": 9, "eval_every": 9}
    trainer = prepare(configure(algo="supervised", backbone="wrn_10_1", **options)).trainer
    seen: list[int] = []
    trainer.observers.append(
        lambda row: seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    )
    trainer.fit()
    new_pages = [after - before for before, after in pairwise(seen[:-1])]
    assert statistics.median(new_pages) < 500  # 1,000 to 2,000 otherwise


@pytest.mark.parametrize("algo", ["simple", "mixmatch", "mixmatch_enhanced", "fixmatch"])
def test_bfloat16_trains(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl_toolkit.engine.devices.native_bfloat16", lambda: True)
    outcome = runs.train(
        configure(algo=algo, precision="bf16", steps=2, output=str(tmp_path / "run"))
    )
    assert outcome.summary.status == "completed"
    assert all(math.isfinite(row["train.loss"]) for row in rows(outcome.folder))
