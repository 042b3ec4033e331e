"""A small run of an algorithm in the engine, with a tiny network and toy images."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_toolkit.augment.weak import NoAugmentation, Weak
from ssl_toolkit.config.options import Options
from ssl_toolkit.config.sections import EMASettings, OptimizerSettings
from ssl_toolkit.config.settings import ResolvedSettings
from ssl_toolkit.engine.batches import BatchMaker
from ssl_toolkit.engine.checkpoints import seed_everything
from ssl_toolkit.engine.context import EngineContext, total_loss
from ssl_toolkit.engine.devices import make_autocast, make_scaler
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.ema import EMA
from ssl_toolkit.engine.optimization import build_optimizer
from ssl_toolkit.engine.prediction import predict
from ssl_toolkit.engine.random_orders import derive_seed
from ssl_toolkit.engine.shares import shares_of
from ssl_toolkit.engine.step_checks import check_output
from ssl_toolkit.engine.step_metrics import StepRecorder
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.engine.training_images import ImageSource, TrainingImages
from ssl_toolkit.interfaces import (
    Algorithm,
    AugmentationParams,
    Augmenter,
    Backbone,
    Batch,
    StepOutput,
    TaskInfo,
)
from ssl_toolkit.models.classifier import Classifier, set_batchnorm_momentum
from ssl_toolkit.testing.subject import Subject

SEED = 3
STEPS = 50
"""Steps of the run according to `TaskInfo`; few of them are trained."""
MIDDLE = STEPS // 2
LATE = STEPS - 5
"""A step near the end; no rule trains that long."""
SHARP = 30.0
"""Factor for the weights of the head that makes some predictions confident."""


class TinyNetwork(Backbone):
    """A convolution, BatchNorm and average pooling."""

    feature_dim = 16

    def __init__(self) -> None:
        super().__init__()
        self.conv: nn.Conv2d = nn.Conv2d(3, self.feature_dim, 3, padding=1, bias=False)
        self.norm: nn.BatchNorm2d = nn.BatchNorm2d(self.feature_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Return features (N, 16) of images (N, 3, H, W)."""
        return F.leaky_relu(self.norm(self.conv(images)), 0.1).mean(dim=(2, 3))


class Black(Augmenter):
    """Replace the views of another augmenter by black images.

    Args:
        augmenter: augmenter that draws and transforms, with its state.
    """

    def __init__(self, augmenter: Augmenter) -> None:
        super().__init__()
        self.augmenter = augmenter

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw as the other augmenter."""
        return self.augmenter.draw(count, height, width, generator)

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Return black images (N, 3, H, W)."""
        return torch.zeros_like(self.augmenter.transform(images, draws))


class Trial:
    """An algorithm in the engine, for single steps or a short training.

    Args:
        subject: class, options and device of the algorithm.
        config: options; those of the subject if None.
        classes: number of classes.
        batch_size: number of labeled images per batch.
        size: height and width of the images.
        sharpness: factor for the weights of the head; 0 for uniform predictions.
        processes: processes that share the run; this one only if None.
        multilabel: give each image its class in the form of ``--task multilabel``.
        blank: make all views black, with uniform predictions whatever the sharpness; a scan still
            reads the original images.
    """

    def __init__(
        self,
        subject: Subject,
        config: Options | None = None,
        *,
        classes: int = 4,
        batch_size: int = 4,
        size: tuple[int, int] = (8, 8),
        sharpness: float = SHARP,
        processes: ProcessGroup | None = None,
        multilabel: bool = False,
        blank: bool = False,
    ) -> None:
        self.device: torch.device = subject.device
        device = self.device
        seed_everything(SEED)
        self.images: TrainingImages = _training_images(classes, size, device)
        images = self.images
        self.classifier: Classifier = Classifier(TinyNetwork(), classes).to(device)
        with torch.no_grad():
            head: Any = self.classifier.head
            head.weight.mul_(sharpness)
            head.bias.zero_()
            if processes is None:
                _measure_statistics(self.classifier, images.loaded.gather(images.labeled))
        self.ema: EMA = EMA(self.classifier, 0.9)
        self.task: TaskInfo = TaskInfo(
            num_classes=classes,
            feature_dim=TinyNetwork.feature_dim,
            label_counts=tuple(torch.bincount(images.labels, minlength=classes).tolist()),
            unlabeled_count=len(images.unlabeled),
            kind="multilabel" if multilabel else "multiclass",
            max_steps=STEPS,
            image_size=min(size),
            batch_size=batch_size,
            processes=processes.size if processes else 1,
            model_factory=partial(_second_network, classes),
        )
        if multilabel:
            labels, hidden = (
                F.one_hot(part, classes).float() for part in (images.labels, images.hidden)
            )
            images = self.images = replace(images, labels=labels, hidden=hidden)
            self.classifier.task = self.ema.module.task = "multilabel"  # type: ignore[assignment]
        seed_everything(derive_seed(SEED, "algorithm"))
        options = subject.options() if config is None else config
        self.algorithm: Algorithm = subject.plugin(options, self.task).to(device)
        augmenters: dict[str, Augmenter] = {
            "weak": Weak(),
            "strong": Weak(Weak.Config(padding_fraction=0.25)),
            **{name: extra.to(device) for name, extra in self.algorithm.augmenters().items()},
        }
        with_plain = {"plain": NoAugmentation(), **augmenters}
        self.batches: BatchMaker = BatchMaker(
            images,
            self.algorithm.views(),
            {name: Black(one) for name, one in with_plain.items()} if blank else augmenters,
            batch_size=batch_size,
            seed=SEED,
            uses_hidden_labels=subject.plugin.uses_hidden_labels,
            processes=processes,
        )
        self.rows: list[dict[str, float | int]] = []
        """Logged metrics, one row per trained step."""
        self.trainer: Trainer = Trainer(
            settings=_settings(batch_size),
            classifier=self.classifier,
            algorithm=self.algorithm,
            augmenters=tuple(augmenters.values()),
            batches=self.batches,
            optimizer=build_optimizer(self.classifier, self.algorithm, OptimizerSettings(), 0.05),
            ema=self.ema,
            validation=(images.labeled[:0], images.labels[:0]),
            precision="fp32",
            autocast=make_autocast("fp32", device),
            scaler=make_scaler("fp32", device),
            observers=[self.rows.append],
            recorder=StepRecorder(
                self.task.label_counts, processes, metrics=self.algorithm.metrics
            ),
            processes=processes or ProcessGroup(),
        )
        self._scanned = False

    def batch(self, number: int = 0) -> Batch:
        """Return a batch of views."""
        return self.batches.draw(number)

    def context(self, step: int = MIDDLE, number: int = 0) -> EngineContext:
        """Return the context of a step."""
        return EngineContext(
            self.classifier,
            self.trainer.predictor,
            step=step,
            max_steps=STEPS,
            seed=SEED,
            number=number,
            class_shares=shares_of(self.task.label_counts).to(self.device),
            pool_mask=self.batches.pool_mask,
        )

    def output(
        self,
        step: int = MIDDLE,
        *,
        batch: Batch | None = None,
        precision: str = "fp32",
        around: AbstractContextManager[object] | None = None,
    ) -> StepOutput:
        """Return the output of a step; the algorithm scans before its first one.

        Args:
            step: step of the context.
            batch: batch of the step; the first one if None.
            precision: fp32 or bf16.
            around: context manager for the call of the step.
        """
        self.scan(step)
        batch = self.batch() if batch is None else batch
        context = self.context(step)
        with make_autocast(precision, self.device)(), around or nullcontext():
            output = self.algorithm.step(batch, context)
        if not isinstance(output, StepOutput):  # rules check the fields
            check_output(output, batch, self.task.num_classes)
        return output

    def scan(self, step: int = 0) -> None:
        """Call `Algorithm.scan` before the first step only."""
        if self.algorithm.scan_every > 0 and not self._scanned:
            self._scanned = True
            labeled, pool = self.batches.labeled_images(10), self.batches.unlabeled_images(10)
            with torch.no_grad():
                self.algorithm.scan(labeled, pool, self.context(step))

    def backward(self, output: StepOutput) -> Tensor:
        """Compute the gradients and return the objective."""
        total = total_loss(output)
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()

    def fit(self, until: int) -> None:
        """Train until a step in the engine's loop."""
        trainer = self.trainer
        trainer.stop = lambda: "done" if trainer.step >= until else ""
        trainer.fit()

    def accuracy(self) -> float:
        """Return the higher accuracy of model and teacher on the unlabeled images."""
        models = self.classifier, self.trainer.predictor
        source, indices, labels = self.images.pool, self.images.unlabeled, self.images.hidden
        predictions = [predict(m, source, indices, 64).argmax(dim=-1) for m in models]
        return max(float((classes == labels.cpu()).float().mean()) for classes in predictions)


def _second_network(classes: int, pretrained: bool) -> Classifier:
    return Classifier(TinyNetwork(), classes)


def _settings(batch_size: int) -> ResolvedSettings:
    return ResolvedSettings(
        backbone="trial",
        image_size=1,
        val_fraction=0,
        test_fraction=0,
        steps=STEPS,
        batch_size=batch_size,
        eval_batch_size=64,
        lr=0.05,
        eval_every=STEPS,
        log_every=1,
        save_every=STEPS,
        seed=SEED,
        ema=EMASettings(decay=0.9),
    )


@cache
def _training_images(classes: int, size: tuple[int, int], device: torch.device) -> TrainingImages:
    """Return images with a color and a coarse pattern per class, and noise."""
    generator = torch.Generator().manual_seed(SEED)
    patterns = torch.rand(classes, 3, 2, 2, generator=generator)
    colors = torch.rand(classes, 3, 1, 1, generator=generator)
    patterns = F.interpolate(0.3 * patterns + 0.6 * colors, size, mode="bilinear")
    labels = torch.arange(classes * (16 if classes < 20 else 3)) % classes
    noise = 0.1 * torch.rand(len(labels), 3, *size, generator=generator)
    pixels = (255 * (patterns[labels] + noise)).to(torch.uint8)
    source = ImageSource(pixels.to(device))
    rows = np.arange(len(labels))
    indices, labels = torch.from_numpy(rows).to(device), labels.to(device)
    few = len(labels) // 3
    return TrainingImages(source, indices[:few], labels[:few], indices[few:], labels[few:], rows)


def _measure_statistics(classifier: Classifier, images: Tensor) -> None:
    """Set the statistics of BatchNorm, which the teacher's first predictions use."""
    set_batchnorm_momentum(classifier, 1.0)
    classifier(images)
    set_batchnorm_momentum(classifier, 0.1)


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch by name."""
    values = {**vars(batch), **{f"extra[{name!r}]": view for name, view in batch.extra.items()}}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
