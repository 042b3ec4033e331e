"""Train by the engine and by plain loops over the formulas, in float64, and compare each step.

Both start from the same weights and get ready views. The loops forward one image at a time through
a copy of the network; update rule, schedule, clipping and averages are written out here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

import torch
from plain_losses import Loop
from torch import Tensor, nn
from torch.nn import functional as F
from toy_context import CLASSES, LABELED, POOL, make_batch, toy_images

from ssl_toolkit import EMA, AddOn, Algorithm, Backbone, Batch, TaskInfo, registry
from ssl_toolkit.config.loading import ResolvedConfig, load_config
from ssl_toolkit.config.plugin_names import section_of
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.optimization import build_optimizer
from ssl_toolkit.engine.random_orders import seeded_generator
from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.models.classifier import Classifier

STEPS, LENGTH = 20, 100
"""Steps to compare, of a run of this length."""
TOLERANCE = 1e-9
RULES = {"paper": ("adamw", 0.02), "reference": ("sgd", 0.01), "original": ("adamw", 0.02)}
"""Update rule and learning rate by profile."""


@dataclass(frozen=True)
class Case:
    """A toy run of an algorithm, in which its formula matters."""

    loop: type[Loop]
    options: dict[str, Any] = field(default_factory=dict)
    scale: float = 150
    """Factor of the head's weights; makes predictions confident for some images only."""
    label_counts: tuple[int, ...] = (LABELED // CLASSES,) * CLASSES
    """Labeled images of each class, of which `Context.class_shares` are the shares."""


@dataclass
class Deviations:
    """Largest deviations over the steps, relative where a value is above 1."""

    losses: float = 0.0
    gradients: float = 0.0
    weights: float = 0.0
    averages: float = 0.0
    state: float = 0.0
    used: list[int] = field(default_factory=list)
    """Number of pseudo labels in use at each step."""
    clipped: int = 0
    """Number of steps whose gradient was clipped."""

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max(self.losses, self.gradients, self.weights, self.averages, self.state)

    def add(self, name: str, ours: Tensor, theirs: Tensor) -> None:
        """Note how far two tensors are apart."""
        ours, theirs = ours.detach().double(), theirs.detach().double()
        assert ours.shape == theirs.shape, name
        if ours.numel():
            apart = ((ours - theirs).abs() / theirs.abs().clamp_min(1)).max().item()
            setattr(self, name, max(getattr(self, name), apart if math.isfinite(apart) else 1.0))


class ToyBackbone(Backbone):
    """A convolution without BatchNorm, so that the output for an image only depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.feature_dim = 8

    def forward(self, images: Tensor) -> Tensor:
        return F.leaky_relu(self.conv(images)).mean(dim=(2, 3))


def configuration(algo: str, profile: str, options: dict[str, Any]) -> ResolvedConfig:
    """Return the configuration of a toy run in a profile."""
    rule, lr = RULES[profile]
    sets = [f"optimizer.name={rule}", "schedule.name=cosine", "optimizer.weight_decay=0.05"]
    keys = {"algo": algo, "profile": profile, "steps": LENGTH, "lr": lr, "batch_size": 4}
    keys |= {"eval_every": LENGTH, "log_every": LENGTH}
    return resolve_config(load_config([], {**keys, section_of(algo): options}, sets))[0]


def deviations(algo: str, profile: str, case: Case) -> Deviations:
    """Compare 20 steps of an algorithm with its plain loop."""
    config = configuration(algo, profile, case.options)
    trainer = toy_trainer(config, case)
    loop = case.loop(config.algorithm)
    plain = PlainRun(trainer, loop)
    result = Deviations()
    step_of, outputs, gradients = trainer.algorithm.step, [], []

    def step(batch: Batch, ctx: Any) -> Any:
        outputs.append(step_of(batch, ctx))
        return outputs[-1]

    def keep_gradients(optimizer: Any, *_: Any) -> None:
        gradients.append([_or_zeros(p.grad, p).clone() for p in trained(trainer)])

    def compare(_: float) -> None:
        number = trainer.step - 1
        losses, mask = plain.step(number, trainer.batches.draw(number))
        output = outputs[-1]
        assert output.losses.keys() == losses.keys()
        for name, loss in output.losses.items():
            result.add("losses", loss.weight * loss.value, torch.as_tensor(losses[name]))
        ours = output.pseudo_labels
        assert (ours.mask.tolist() if ours else None) == mask
        result.used.append(sum(mask or []))
        for own, other in zip(gradients[-1], plain.gradients, strict=True):
            result.add("gradients", own, other)
        for own, other in zip(trained(trainer), plain.trained, strict=True):
            result.add("weights", own, other)
        for own, other in zip(averaged(trainer), plain.averages, strict=True):
            result.add("averages", own, other)
        buffers = dict(trainer.algorithm.named_buffers())
        for name, value in loop.state().items():
            target = torch.as_tensor(value, dtype=torch.float64)
            buffer = buffers[name] if target.ndim == 0 else buffers[name][: len(target)]
            result.add("state", buffer, target)

    trainer.algorithm.step = step  # type: ignore[method-assign]
    trainer.optimizer.register_step_pre_hook(keep_gradients)
    trainer.stepped = compare
    trainer.stop = lambda: "enough" if trainer.step == STEPS else ""
    trainer.fit()
    result.clipped = plain.clipped_steps
    if profile == "paper":  # the other profiles train less, or at other rates
        loop.check(result.used)
    return result


def toy_trainer(config: ResolvedConfig, case: Case) -> Trainer:
    """Return the engine's trainer of a toy network in float64, on the views of `make_batch`."""
    kind: type[Algorithm] = registry.load("algorithms", config.settings.algo)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        classifier = Classifier(ToyBackbone(), CLASSES).double()
        task = TaskInfo(CLASSES, 8, case.label_counts, POOL, LENGTH)
        algorithm = kind(config.algorithm, task).double()
    with torch.no_grad():
        head: Any = classifier.head
        head.weight.mul_(case.scale)
    settings = config.settings
    ema = None
    if settings.ema:
        ema = EMA(
            classifier,
            float(settings.ema.decay),
            settings.ema.average_buffers,
            warmup=settings.ema.warmup,
        )
    return Trainer(
        settings=settings,
        classifier=classifier,
        algorithm=algorithm,
        augmenters=(),
        batches=ToyBatches(algorithm),  # type: ignore[arg-type]
        optimizer=build_optimizer(classifier, algorithm, settings.optimizer, settings.lr),
        ema=ema,
        validation=(torch.zeros(0), torch.zeros(0)),
        precision="fp32",
        autocast=nullcontext,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
    )


class ToyBatches:
    """What a trainer needs of its batches."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.pool_mask = torch.ones(POOL, dtype=torch.bool)

    def draw(self, number: int) -> Batch:
        batch = make_batch(self.algorithm, seed=number)
        values = {part.name: getattr(batch, part.name) for part in fields(batch)}
        doubles = {
            name: value.double()
            for name, value in values.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        return replace(batch, **doubles)

    def hidden_labels(self, batch: Batch) -> Tensor:
        return torch.full_like(batch.unlabeled_indices, -1)

    def labeled_images(self, _: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        images, labels, _pool = toy_images()
        yield torch.arange(len(images)), images, labels

    def unlabeled_images(self, _: int) -> Iterator[tuple[Tensor, Tensor]]:
        pool = toy_images()[2]
        cut = len(pool) // 3  # several batches, of which the last is larger
        places = torch.arange(len(pool))
        yield places[:cut], pool[:cut]
        yield places[cut:], pool[cut:]


def trained(trainer: Trainer) -> list[nn.Parameter]:
    return [*trainer.classifier.parameters(), *trainer.algorithm.parameters()]


def averaged(trainer: Trainer) -> list[nn.Parameter]:
    if trainer.ema is None:
        return []
    return [*trainer.ema.module.parameters(), *trainer._averaged.module.parameters()]


def heads_of(algorithm: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of an algorithm and of its add-ons."""
    for module in algorithm.children():
        if isinstance(module, Algorithm | AddOn):
            yield from heads_of(module)
        else:
            yield module


class PlainRun:
    """Training as formulas: SGD or AdamW, decay, clipping, cosine schedule and averages."""

    def __init__(self, trainer: Trainer, loop: Loop) -> None:
        settings = trainer.settings
        self.rule, self.schedule, self.ema = settings.optimizer, settings.schedule, settings.ema
        self.lr, self.seed, self.loop = settings.lr, settings.seed, loop
        self.net = copy.deepcopy(trainer.classifier)
        heads = list(heads_of(trainer.algorithm))
        assert len(heads) == (loop.head is not None)
        if loop.head is not None:
            loop.head.double().load_state_dict(heads[0].state_dict())
        names = trainer.algorithm.averaged_modules if self.ema else ()
        assert len(names) in (0, len(heads))
        self.live = [self.net, *([loop.head] if names else [])]
        self.trained = [*self.net.parameters(), *(loop.head.parameters() if loop.head else ())]
        self.teachers = [copy.deepcopy(module) for module in self.live] if self.ema else self.live
        self.averages = [p for t in self.teachers for p in t.parameters()] if self.ema else []
        zeros = [torch.zeros_like(parameter) for parameter in self.trained]
        self.first, self.second = zeros, [zero.clone() for zero in zeros]
        self.counts, self.clipped_steps = [0] * len(zeros), 0
        self.gradients: Sequence[Tensor] = ()

    def step(self, number: int, batch: Batch) -> tuple[dict[str, Any], list[bool] | None]:
        """Take the step with a number; return the losses and the mask of the pseudo labels."""
        run = SimpleNamespace(
            net=self.net,
            teacher=self.teachers[0],
            teacher_head=self.teachers[-1] if len(self.teachers) > 1 else None,
            generator=seeded_generator(self.seed, number, "algorithm"),
            step=number,
        )
        losses, mask = self.loop(run, batch)
        total = sum(losses.values())
        unused = torch.autograd.grad(total, self.trained, allow_unused=True)
        with torch.no_grad():
            self.gradients = self.clipped(list(map(_or_zeros, unused, self.trained)))
            cosine = math.cos(math.pi * self.schedule.cycles * number / LENGTH)
            for i, gradient in enumerate(self.gradients):
                if unused[i] is not None:
                    self.update(i, gradient, self.lr * cosine)
            self.average(number)
        return losses, mask

    def clipped(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Scale all gradients to the maximum norm, if theirs is above it."""
        if self.rule.clip_norm is None:
            return gradients
        total = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        factor = min(1.0, self.rule.clip_norm / (total + 1e-6))
        self.clipped_steps += factor < 1
        return [gradient * factor for gradient in gradients]

    def update(self, i: int, gradient: Tensor, lr: float) -> None:
        """Update one parameter by Nesterov SGD with coupled decay, or AdamW with decoupled."""
        parameter = self.trained[i]
        decays = self.rule.weight_decay_on == "all" or parameter.ndim >= 2
        decay = self.rule.weight_decay if decays else 0.0
        if self.rule.name == "sgd":
            gradient = gradient + decay * parameter
            self.first[i] = self.rule.momentum * self.first[i] + gradient
            parameter -= lr * (gradient + self.rule.momentum * self.first[i])
            return
        self.counts[i] += 1
        parameter *= 1 - lr * decay
        self.first[i] = 0.9 * self.first[i] + 0.1 * gradient
        self.second[i] = 0.999 * self.second[i] + 0.001 * gradient * gradient
        mean = self.first[i] / (1 - 0.9 ** self.counts[i])
        square = self.second[i] / (1 - 0.999 ** self.counts[i])
        parameter -= lr * mean / (square.sqrt() + 1e-8)

    def average(self, number: int) -> None:
        """Move the averages toward the weights."""
        if not self.ema:
            return
        decay = float(self.ema.decay)
        if self.ema.warmup:
            decay = min(decay, (1 + number) / (10 + number))
        values = [parameter for module in self.live for parameter in module.parameters()]
        for average, value in zip(self.averages, values, strict=True):
            average.copy_(decay * average + (1 - decay) * value)


def _or_zeros(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """Return a gradient; zeros if the losses don't depend on the parameter."""
    return torch.zeros_like(parameter) if gradient is None else gradient
