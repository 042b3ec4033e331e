"""The training loop, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.engine.batches import BatchMaker
from ssl_toolkit.engine.checkpoints import random_states, restore_random_states, seed_torch
from ssl_toolkit.engine.context import EngineContext, StepModule
from ssl_toolkit.engine.costs import SHORT, Costs, seconds
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.engine.finite_checks import RestoreCheck, check_finite
from ssl_toolkit.engine.optimization import gradient_norm, learning_rate, set_learning_rate
from ssl_toolkit.engine.own_modules import AveragedModules
from ssl_toolkit.engine.pool_filter import UPDATES, PoolFilter
from ssl_toolkit.engine.prediction import Best, evaluation, predict, predict_batch
from ssl_toolkit.engine.random_orders import derive_seed, seeded_generator
from ssl_toolkit.engine.shares import class_shares
from ssl_toolkit.engine.step_checks import check_gradients
from ssl_toolkit.engine.step_metrics import StepRecorder
from ssl_toolkit.engine.transfer import ProbeResult, Transfer, training_features
from ssl_toolkit.interfaces import Algorithm, Augmenter, FeatureAlgorithm
from ssl_toolkit.interfaces.composition import due_scans
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.predictor import Predictor
from ssl_toolkit.torch_workarounds import data_parallel, keep_freed_memory

Row = dict[str, float | int]


@dataclass
class Trainer:
    """Everything that training changes, and the loop that changes it.

    Args:
        settings: settings of the run.
        classifier: the live model.
        algorithm: computes the losses.
        augmenters: augmenters of the weak and strong views; they may have state.
        batches: source of the batches.
        optimizer: optimizer of the parameters of classifier and algorithm.
        ema: the averaged model, None for none.
        validation: (n,) image indices and (n,) labels; empty for none.
        precision: precision of the forward pass: fp32, bf16 or fp16.
        autocast: returns the precision context of a forward pass.
        scaler: loss scaling for fp16; inactive otherwise.
        observers: called with each row of metrics.
        save: called when a checkpoint is due.
        stepped: called after each step with its seconds, those of an evaluation included.
        stop: called after each step; returns a reason to stop early, "" for none.
        announce: called with the result of the probe, before the first step.
        processes: the processes that train together; all of them call the same methods.
    """

    settings: ResolvedSettings
    classifier: Classifier
    algorithm: Algorithm
    augmenters: Sequence[Augmenter]
    batches: BatchMaker
    optimizer: Optimizer
    ema: EMA | None
    validation: tuple[Tensor, Tensor]
    precision: str
    autocast: Callable[[], AbstractContextManager[object]]
    scaler: torch.amp.GradScaler
    observers: list[Callable[[Row], None]] = field(default_factory=list)
    save: Callable[[], None] = lambda: None
    stepped: Callable[[float], None] = lambda seconds: None
    stop: Callable[[], str] = lambda: ""
    announce: Callable[[ProbeResult], None] = lambda probe: None
    prior: Tensor | None = None
    """(C,) class shares of the pool by ``--prior``, or by the labels that are not pseudo labels if
    there are pseudo labels; None to take those of `class_shares`."""
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    transfer: Transfer | None = None
    """Use of the features of the first weights; None for none."""
    pool_filter: PoolFilter | None = None
    """Leaves images of no class out of the unlabeled batches; None to draw all."""
    test: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """(n,) image indices of the test images, for the probe that the run is compared with."""

    step: int = 0
    seconds: float = 0.0
    images: int = 0
    """Training images drawn so far, views not counted."""
    best: Best | None = None
    saved: int = 0
    """Step of the last checkpoint."""
    best_saved: int = 0
    """Step of the best weights that `save` has written on their own."""
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    pseudo_labels: list[int] = field(default_factory=list)
    """Used pseudo labels of each class between the last two evaluations."""
    recorder: StepRecorder = field(default_factory=StepRecorder)
    probe: ProbeResult | None = None
    """Accuracy of the linear probe of the first weights."""

    def __post_init__(self) -> None:
        self._step_module: nn.Module = StepModule(self.classifier, self.algorithm)
        self._averaged = AveragedModules(self.algorithm, self.ema)
        self._check_restore = RestoreCheck(self.algorithm, self.settings.algo)
        self.predictor: Predictor = Predictor(
            self.eval_model, self.algorithm, self.settings.algo, self._averaged.module
        )
        self._expect_shares()

    @property
    def eval_model(self) -> Classifier:
        """The model to evaluate, also the teacher: the average if any, else the live one."""
        return self.classifier if self.ema is None else self.ema.module  # type: ignore[return-value]

    @property
    def steps(self) -> int:
        """Steps of the whole run; fitting a head counts as one."""
        return 1 if isinstance(self.algorithm, FeatureAlgorithm) else self.settings.steps

    def fit(self) -> str:
        """Train until the last step.

        Returns:
            "" when all steps are done, else the reason that `stop` gave.

        Raises:
            TrainingError: a loss or weight is not finite.
        """
        self.start()
        if isinstance(self.algorithm, FeatureAlgorithm):
            if not self.step:
                self._fit_head(self.algorithm)
            return ""
        if reason := self.processes.any_reason(self.stop()) if self.transfer is not None else "":
            return reason
        s = self.settings
        steps, accumulation_steps = s.steps, s.optimizer.accumulation_steps
        started = flushed = time.perf_counter()
        before, counted = self.seconds, self.images
        if self.processes.size > 1:
            self._step_module = data_parallel(StepModule(self.classifier, self.algorithm))
        keep_freed_memory(self.classifier.mean.device)
        self.classifier.train()
        while self.step < steps:
            step_started = time.perf_counter()
            set_learning_rate(self.optimizer, s.schedule, self.step, steps)
            if self.pool_filter is not None and self.pool_filter.is_due(self.step):
                self.pool_filter.update(self.predictor, self.batches, self.processes)
            self._scan_if_due()
            for number in range(
                self.step * accumulation_steps, (self.step + 1) * accumulation_steps
            ):
                self._forward_backward(number, accumulation_steps)
            self._update()
            self.step += 1

            evaluate = self.step % s.eval_every == 0 or self.step == steps
            if evaluate or self.step % s.log_every == 0:
                row = {"step": self.step, **self.recorder.flush()}
                row["lr"] = learning_rate(self.optimizer)
                elapsed = time.perf_counter() - flushed
                row["images_per_second"] = (self.images - counted) / elapsed
                if evaluate:
                    row |= self._evaluate()
                    self.pseudo_labels = self.recorder.take_class_counts()
                counted, flushed = self.images, time.perf_counter()
                self.seconds = before + flushed - started
                for observe in self.observers:
                    observe(row | {"seconds": self.seconds})
            self.stepped(time.perf_counter() - step_started)
            reason = self.processes.any_reason(self.stop()) if self.step < steps else ""
            if reason or self.step % s.save_every == 0 or self.step == steps:
                self.seconds = before + time.perf_counter() - started
                self._save()
            if reason:
                return reason
        return ""

    def start(self) -> None:
        """Use the features of the pre-trained weights before the first step."""
        if self.transfer is None:
            return
        started = time.perf_counter()
        result = self.transfer.start(
            self.classifier, self.batches, self.validation[0], self.test, first=not self.step
        )
        if result is not None:
            self.probe = result.averaged(self.processes)
            self.announce(self.probe)
        if self.ema is not None and not self.step:
            self.ema.restart(self.classifier)
        self._expect_shares()
        self.seconds += time.perf_counter() - started

    def _expect_shares(self) -> None:
        """Estimate the class shares of the pool from the labels and the probe."""
        estimate = None if self.probe is None else self.probe.shares
        self.recorder.estimate = () if estimate is None else estimate.tolist()
        shares = class_shares(self.algorithm.task.label_counts, estimate, self.prior)
        self._class_shares = shares.to(self.classifier.mean.device)

    def _fit_head(self, algorithm: FeatureAlgorithm) -> None:
        """Let the algorithm fit its head, in place of a training loop."""
        started = time.perf_counter()
        images = self.batches.images
        features = training_features(images, self.classifier.blocks)
        if self.pool_filter is not None:
            features = self.pool_filter.fit(features, images)
        self.classifier.head = algorithm.fit(features, seeded_generator(self.settings.seed, "fit"))
        self.classifier.head.to(images.labels.device)
        self.images = len(images.labels) + len(images.unlabeled)
        self.step = 1
        row: Row = {"step": 1, **self._evaluate()}
        self.seconds += time.perf_counter() - started
        for observe in self.observers:
            observe(row | {"seconds": self.seconds})
        self._save()

    def measure(self, steps: int = 8, warm: int = 3) -> Costs:
        """Measure the seconds of the parts of training; trains, so measure on a copy.

        Args:
            steps: steps to measure.
            warm: steps before them that are not measured.
        """
        device = self.classifier.mean.device
        keep_freed_memory(device)
        self.start()
        if isinstance(self.algorithm, FeatureAlgorithm):
            fit = seconds(partial(self._fit_head, self.algorithm), device)
            return Costs(fit, 0.0, 0.0, 0)
        self.classifier.train()
        scan = seconds(self._scan_if_due, device)  # steps may need what it finds
        self._practice(range(warm))
        step = seconds(lambda: self._practice(range(warm, warm + steps)), device) / steps
        if scan < SHORT:  # the first call of anything is slow
            scan = min(scan, seconds(self._scan_if_due, device))
        step *= self.settings.optimizer.accumulation_steps
        evaluation, images = seconds(self._evaluate, device), self.batches.images
        selections = 0 if self.pool_filter is None else UPDATES * len(images.unlabeled)
        selection = selections * evaluation / (len(self.validation[0]) or len(images.labeled))
        return Costs(step, evaluation, scan, self.algorithm.scan_every, selection)

    def _practice(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._forward_backward(number, 1)
            self._update()

    def _forward_backward(self, number: int, accumulation_steps: int) -> None:
        """Add the gradient of one batch."""
        for augmenter in self.augmenters:
            if augmenter.wants_feedback:
                views, draws, labels = self.batches.probe(augmenter, number)
                with self.autocast():
                    probs = predict_batch(self.classifier, views)
                augmenter.feedback(draws, probs, labels)
        batch = self.batches.draw(number)
        if self.processes.size > 1:  # draws of dropout and the like differ as the images do
            seed_torch(derive_seed(self.settings.seed, "global", self.processes.rank, number))
        last = (number + 1) % accumulation_steps == 0
        with nullcontext() if last else self.processes.unsynchronized(self._step_module):
            with self.autocast():
                total, output = self._step_module(batch, self._context(number))
            first = number % accumulation_steps == 0  # later ones add to its gradient
            check_gradients(total, self.classifier.parameters() if first else ())
            self.scaler.scale(total / accumulation_steps).backward()
        self.recorder.add(self.step + 1, total, output, self.batches.hidden_labels(batch))
        self.images += self.processes.size * (len(batch.labels) + len(batch.unlabeled_indices))

    def _update(self) -> None:
        if not self.scaler.is_enabled():  # a scaler looks itself, and leaves such a step out
            self.recorder.add_gradient(self.step + 1, gradient_norm(self.optimizer))
        clip_norm = self.settings.optimizer.clip_norm
        if clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.processes.average_statistics(self._step_module)
        if self.ema is not None:
            self.ema.update(self.classifier)
        self._averaged.update()

    def _scan_if_due(self) -> None:
        every = self.algorithm.scan_every
        if not every or self.step % every:
            return
        ctx = self._context(self.step * self.settings.optimizer.accumulation_steps)
        with torch.no_grad(), self.autocast():
            for scan in due_scans(self.algorithm, ctx):
                scan(
                    self.batches.labeled_images(self.settings.eval_batch_size),
                    self.batches.unlabeled_images(self.settings.eval_batch_size),
                )

    def _evaluate(self) -> Row:
        """Score the averaged weights; on the labeled images where there is no validation."""
        (indices, labels), split = self.validation, "validation"
        if not len(indices):
            indices, labels = self.batches.images.labeled, self.batches.images.labels
            split = "train.labeled"
        score, row = evaluation(self.predict(indices), labels.cpu(), split, self.step)
        if split == "validation":
            self.evaluations.append((self.step, score))
            if self.best is None or score > self.best.accuracy:
                self.best = Best.of(self.predictor, self.step, score)
        return row

    def predict(
        self, indices: Tensor, batch_size: int | None = None, *, alone: bool = False
    ) -> Tensor:
        """Return probabilities (N, C) by the averaged weights, on the CPU.

        Args:
            indices: (N,) image indices.
            batch_size: images per forward pass; None for that of evaluations.
            alone: predict in this process only, without the others of the run.
        """
        return predict(
            self.predictor,
            self.batches.images.inputs,
            indices,
            batch_size or self.settings.eval_batch_size,
            None if alone else self.processes,
        )

    def _save(self) -> None:
        # A row may not be due yet, so a bad loss could still be waiting on the device.
        self.recorder.check()
        check_finite(self.step, self.classifier, self.algorithm, self.settings.algo, self.scaler)
        self._check_restore()
        self.save()
        self.saved = self.step

    def _context(self, number: int) -> EngineContext:
        return EngineContext(
            self.classifier,
            self.predictor,
            step=self.step,
            max_steps=self.settings.steps,
            seed=self.settings.seed,
            number=number,
            class_shares=self._class_shares,
            pool_mask=self.batches.pool_mask,
            processes=self.processes,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a run needs to resume exactly, as tensors and plain types."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "images": self.images,
            "model": self.classifier.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "algorithm_state": self.algorithm.state_dict(),
            "averaged": self._averaged.state_dict(),
            "augmenters": [augmenter.state_dict() for augmenter in self.augmenters],
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "evaluations": [list(evaluation) for evaluation in self.evaluations],
            "best": None if self.best is None else vars(self.best),
            "pseudo_labels": self.pseudo_labels,
            "probe": None if self.probe is None else vars(self.probe),
            "pool_filter": None if self.pool_filter is None else self.pool_filter.state(),
            "unlogged": self.recorder.state(),
            "random": random_states(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.step, self.seconds, self.images = state["step"], state["seconds"], state["images"]
        self.saved = self.step
        self.classifier.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.algorithm.load_state_dict(state["algorithm_state"])
        self._averaged.load_state_dict(state["averaged"])
        for augmenter, saved in zip(self.augmenters, state["augmenters"], strict=True):
            augmenter.load_state_dict(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.evaluations = [(step, accuracy) for step, accuracy in state["evaluations"]]
        self.best = None if state["best"] is None else Best(**state["best"])
        self.pseudo_labels = state["pseudo_labels"]
        self.probe = ProbeResult(**state["probe"]) if state.get("probe") else None
        self.recorder.restore(state["unlogged"])
        if self.pool_filter is not None:
            self.pool_filter.restore(state["pool_filter"], self.batches)
        restore_random_states(state["random"])
