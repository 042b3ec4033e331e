"""Rules on an algorithm over several steps, on other sizes and precisions, and on its state."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor

from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.engine.context import total_loss
from ssl_toolkit.interfaces import StepOutput
from ssl_toolkit.testing.rules import require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import SEED, Trial, differing, listed, seed_globally

# --- reproducible -------------------------------------------------------------------------------


@rule(
    "algorithms",
    why="a run is named by its seed; comparisons and resumed runs rely on it.",
    cause="numbers drawn without ctx.generator, or in the order of a set",
)
def same_seed_same_losses(subject: Subject) -> None:
    """Two runs of one seed have identical losses."""
    rows = []
    for _ in range(2):
        trial = Trial(subject, sharpness=1)
        trial.fit(3)
        rows.append(_comparable(trial.rows))
    _require_equal(rows[0], rows[1], "two runs of one seed")


@rule(
    "algorithms",
    why="global generators are shared with the model: what draws from them shifts its draws.",
    cause="random.random(), numpy.random, or a torch function without generator=ctx.generator",
)
def no_global_randomness(subject: Subject) -> None:
    """A step draws from `ctx.generator` alone."""
    trial = Trial(subject)
    batch = trial.batch()
    trial.scan()
    before = random_states()
    trial.output(batch=batch)
    after = random_states()
    used = [name for name in ("python", "numpy") if before[name] != after[name]]
    used += ["torch"] * (not torch.equal(before["torch"], after["torch"]))
    require(not used, f"a step draws from the global generator of {listed(used)}")


@rule(
    "algorithms",
    why="a resumed run must equal an uninterrupted one.",
    cause="a count or average that is neither a buffer nor in get_extra_state",
)
def resumed_run_goes_on_exactly(subject: Subject) -> None:
    """A state saved during a run and loaded elsewhere gives the identical next step."""
    first = Trial(subject, sharpness=1)
    first.fit(3)
    file = io.BytesIO()
    torch.save(first.trainer.state_dict(), file)
    first.fit(5)
    file.seek(0)
    second = Trial(subject, sharpness=1)
    second.trainer.load_state_dict(torch.load(file, weights_only=True))
    second.fit(5)
    _require_equal(_comparable(first.rows[3:]), _comparable(second.rows), "the steps after a save")
    wrong = differing(first.classifier.state_dict(), second.classifier.state_dict())
    require(not wrong, f"after them, the weights {listed(wrong)} differ")


@rule(
    "algorithms",
    why="a tensor that torch doesn't know of is neither saved, nor moved to the device.",
    cause="self.bank = torch.zeros(...); use register_buffer",
)
def tensors_are_registered(subject: Subject) -> None:
    """No attribute is a tensor that is neither parameter nor buffer."""
    trial = Trial(subject)
    trial.backward(trial.output())
    loose = [
        name
        for module in trial.algorithm.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    require(not loose, f"{listed(loose)} hold tensors that are not registered")


@rule(
    "algorithms",
    why="a run's time is estimated on a copy.",
    cause="a tensor with a graph is kept from the step before; detach() it",
)
def can_be_copied(subject: Subject) -> None:
    """A deep copy, made after a step, gives the same losses."""
    trial = Trial(subject)
    trial.backward(trial.output())
    twin = copy.deepcopy(trial.algorithm)
    _same_step(trial, twin, "a deep copy")


@rule(
    "algorithms",
    why="processes hand it on by pickle.",
    cause="a lambda, an open file or a class made inside a function is kept",
)
def can_be_pickled(subject: Subject) -> None:
    """Pickled and loaded, it gives the same losses."""
    trial = Trial(subject)
    trial.scan()
    twin = pickle.loads(pickle.dumps(trial.algorithm))
    _same_step(trial, twin, "a pickled one")


@rule(
    "algorithms",
    why="the engine calls scan every so many steps, with the last batch smaller than the others.",
    cause="scan_every below 0, or a bank whose size is not that of the pool",
)
def scan_works(subject: Subject) -> None:
    """`scan_every` is a constant of at least 0; `scan` reads all images and changes no weights."""
    trial = Trial(subject)
    every = trial.algorithm.scan_every
    require(type(every) is int and every >= 0, f"scan_every is {every!r}")
    before = copy.deepcopy(trial.classifier.state_dict())
    trial.scan()
    wrong = differing(before, trial.classifier.state_dict())
    require(not wrong, f"scan changes {listed(wrong)} of the model")
    trial.output()
    require(trial.algorithm.scan_every == every, "scan_every changes with a step")


# --- other sizes --------------------------------------------------------------------------------


@rule(
    "algorithms",
    why="two classes are the most common task of users.",
    cause="a hard-coded number of classes, or more neighbors than classes",
)
def two_classes_work(subject: Subject) -> None:
    """A step works with 2 classes."""
    _works(Trial(subject, classes=2))


@rule(
    "algorithms",
    why="a method that was tried on CIFAR-10 meets CIFAR-100 next.",
    cause="a hard-coded number of classes; use self.task.num_classes",
)
def hundred_classes_work(subject: Subject) -> None:
    """A step works with 100 classes, most of them absent from the batch."""
    _works(Trial(subject, classes=100))


@rule(
    "algorithms",
    why="large images leave room for few in a batch; processes share them out.",
    cause="a split into equal parts, or a hard-coded size",
)
def batch_of_two_works(subject: Subject) -> None:
    """A step works with 2 labeled images."""
    _works(Trial(subject, batch_size=2))


@rule(
    "algorithms",
    why="the ratio is what papers differ in most.",
    cause="rows of views are reshaped by a fixed ratio, or in the wrong order",
)
def unlabeled_ratios_work(subject: Subject) -> None:
    """A step works with 1, 3 and 7 unlabeled images for each labeled one, where it can be set."""
    if "unlabeled_ratio" not in subject.plugin.Config.model_fields:
        _works(Trial(subject))
        return
    for ratio in (1, 3, 7):
        trial = Trial(subject, subject.options(unlabeled_ratio=ratio))
        views = trial.algorithm.views()
        if views.needs_unlabeled:
            found = views.unlabeled_ratio
            require(found == ratio, f"unlabeled_ratio={ratio}, but views() asks for {found}")
        _works(trial)


@rule(
    "algorithms",
    why="an algorithm sees images of any shape; only the backbone may mind.",
    cause="a transposition, or one side taken for both",
)
def non_square_images_work(subject: Subject) -> None:
    """A step works on images of 8 x 12 pixels."""
    _works(Trial(subject, size=(8, 12)))


@rule(
    "algorithms",
    why="GPUs are trained in bf16; losses that drift there change the training.",
    cause="softmax, logarithms or small differences in half precision; use .float() first",
)
def bf16_is_close(subject: Subject) -> None:
    """Losses under bf16 are finite and within 15 % of those in float32, averaged over batches."""
    sums: dict[str, dict[str, float]] = {"fp32": {}, "bf16": {}}
    batches = 4
    for precision, values in sums.items():
        trial = Trial(subject)
        for number in range(batches):
            output = trial.output(batch=trial.batch(number), precision=precision)
            for name, loss in output.losses.items():
                values[name] = values.get(name, 0.0) + loss.value.float().item() / batches
    for name, exact in sums["fp32"].items():
        rough = sums["bf16"][name]
        near = abs(rough - exact) <= 0.15 * abs(exact) + 0.02
        require(near, f"loss {name!r} is {rough:g} in bf16, {exact:g} in float32")


@rule(
    "algorithms",
    why="such teachers occur: at the start, after a collapse, and on easy data.",
    cause="a division by the number of images that pass, or a logarithm of a probability",
)
def extreme_teachers_stay_finite(subject: Subject) -> None:
    """Losses and gradients are finite where all answers are certain, uniform, or pass no mask."""
    for answers, sharpness in {
        "certain": 1e4,
        "uniform": 0.0,
        "too unsure for a mask": 1.0,
    }.items():
        trial = Trial(subject, sharpness=sharpness)
        output = trial.output()
        for name, loss in output.losses.items():
            require(
                loss.value.isfinite(), f"answers {answers}: loss {name!r} is {loss.value.item()}"
            )
        trial.backward(output)
        for name, parameter in trial.classifier.named_parameters():
            finite = parameter.grad is None or parameter.grad.isfinite().all()
            require(finite, f"answers {answers}: the gradient of {name} is not finite")


@rule(
    "algorithms",
    why="whatever else holds, a method has to learn what a linear classifier would.",
    cause="a wrong sign, a weight that dominates the labels, or a loss of the wrong rows",
)
def forty_steps_learn(subject: Subject) -> None:
    """After 40 steps on toy images the labeled loss is lower and most answers are right."""
    trial = Trial(subject, batch_size=8, sharpness=1)
    trial.fit(40)
    name = "train.loss.supervised"
    losses = [row[name] for row in trial.rows if name in row]
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    require(last < first, f"the loss 'supervised' went from {first:.3g} to {last:.3g}")
    accuracy = trial.accuracy()
    require(accuracy >= 0.6, f"{accuracy:.0%} of the answers are right, by chance 25%")


# --- shared -------------------------------------------------------------------------------------


def _works(trial: Trial) -> StepOutput:
    output = trial.output()
    total = trial.backward(output)
    require(total.isfinite(), f"the objective is {total.item()}")
    return output


def _same_step(trial: Trial, twin: Any, what: str) -> None:
    values = []
    for algorithm in (trial.algorithm, twin):
        trial.algorithm = algorithm
        seed_globally(SEED, trial.device)
        values.append(total_loss(trial.output()).item())
    require(values[0] == values[1], f"{what} has the objective {values[1]:g}, not {values[0]:g}")


def _comparable(rows: list[dict[str, float | int]]) -> list[dict[str, float | int]]:
    timed = ("seconds", "images_per_second")
    return [{name: v for name, v in row.items() if name not in timed} for row in rows]


def _require_equal(
    one: list[dict[str, float | int]], other: list[dict[str, float | int]], what: str
) -> None:
    for mine, yours in zip(one, other, strict=True):
        wrong = sorted(n for n in mine.keys() | yours.keys() if mine.get(n) != yours.get(n))
        if wrong:
            name = wrong[0]
            values = f"{mine.get(name)} and {yours.get(name)}"
            require(False, f"{what} differ: {name} at step {mine['step']} is {values}")
