"""Rules for an algorithm over several steps, for other sizes and precisions, and for its state."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch import Tensor

from ssl_toolkit.engine.checkpoints import seed_everything
from ssl_toolkit.engine.context import total_loss
from ssl_toolkit.engine.own_modules import declaration_fault, interval_fault
from ssl_toolkit.engine.step_checks import check_output
from ssl_toolkit.testing.assertions import differing, listed, no_global_draws
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import SEED, Trial

Rows = list[dict[str, float | int]]


def reproduces_losses(subject: Subject) -> None:
    """Two runs with the same seed have equal losses.

    Why: comparisons and resumed runs rely on the seed.
    Cause: draws without ctx.generator, or iteration over a set.
    """
    first, second = (_train(subject, 3).rows for _ in range(2))
    _require_equal(first, second, "two runs with one seed")


def uses_no_global_generator(subject: Subject) -> None:
    """A step only draws from `ctx.generator`.

    Why: the model draws from the global generators, so other draws change those of the model.
    Cause: random.random(), numpy.random, or a torch function without generator=ctx.generator.
    """
    trial = Trial(subject)
    batch = trial.batch()
    trial.scan()
    with no_global_draws("a step"):
        trial.output(batch=batch)


def resumes_exactly(subject: Subject) -> None:
    """A run that is resumed from a checkpoint continues with equal losses and weights.

    Why: a resumed run must equal an uninterrupted one.
    Cause: a counter or average that is neither a buffer nor in get_extra_state.
    """
    first = _train(subject, 3)
    file = io.BytesIO()
    torch.save(first.trainer.state_dict(), file)
    first.fit(5)
    file.seek(0)
    second = Trial(subject, sharpness=1)
    second.trainer.load_state_dict(torch.load(file, weights_only=True))
    second.fit(5)
    _require_equal(first.rows[3:], second.rows, "the run and the resumed one")
    wrong = differing(first.classifier.state_dict(), second.classifier.state_dict())
    require(not wrong, f"the weights {listed(wrong)} of the resumed run differ")


def registers_tensors(subject: Subject) -> None:
    """Every tensor attribute is a parameter or a buffer.

    Why: other tensors are neither saved nor moved to the device.
    Cause: self.bank = torch.zeros(...); use register_buffer.
    """
    trial = Trial(subject)
    trial.backward(trial.output())
    unregistered = [
        name
        for module in trial.algorithm.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    require(not unregistered, f"not registered: {listed(unregistered)}")


def supports_copy_and_pickle(subject: Subject) -> None:
    """After a step, a deep copy and an unpickled algorithm give the same losses.

    Why: the time of a run is estimated on a copy, and other processes receive a pickle.
    Cause: an attribute that is a lambda, an open file, or a tensor with a graph.
    """
    trial = Trial(subject)
    trial.backward(trial.output())
    original = trial.algorithm
    replicas = {"copied": copy.deepcopy(original), "pickled": pickle.loads(pickle.dumps(original))}
    expected = _objective(trial)
    for origin, replica in replicas.items():
        trial.algorithm = replica
        value = _objective(trial)
        require(value == expected, f"{origin}, it has the objective {value:g}, not {expected:g}")


def scans_without_training(subject: Subject) -> None:
    """`scan_every` is a constant of at least 0; `scan` reads all images and modifies no weights.

    Why: the engine calls scan every scan_every steps; its last batch is smaller.
    Cause: a negative scan_every, or a bank whose size is not that of the pool.
    """
    trial = Trial(subject)
    interval, fault = trial.algorithm.scan_every, interval_fault(trial.algorithm)
    require(not fault, fault)
    before = copy.deepcopy(trial.classifier.state_dict())
    trial.scan()
    wrong = differing(before, trial.classifier.state_dict())
    require(not wrong, f"scan modifies {listed(wrong)} of the model")
    trial.output()
    require(trial.algorithm.scan_every == interval, "scan_every changes with a step")


def supports_other_class_counts(subject: Subject) -> None:
    """A step works with 2 classes, and with 100 of which most are absent from the batch.

    Why: two classes are the most common case; CIFAR-100 follows CIFAR-10.
    Cause: a hard-coded number of classes, or more neighbors than classes; use
    self.task.num_classes.
    """
    for classes in (2, 100):
        _require_finite_step(Trial(subject, classes=classes), f"with {classes} classes")


def supports_declared_tasks(subject: Subject) -> None:
    """`tasks` names known tasks; if `multilabel` is one, a step works with labels (B, C).

    Why: --task multilabel runs the algorithm with labels and pseudo labels for each class.
    Cause: a string instead of a frozenset, or a softmax, cross-entropy or mask (U,) for all tasks.
    """
    tasks = subject.plugin.tasks
    fault = declaration_fault(subject.plugin)
    require(not fault.startswith("tasks"), fault)
    if "multilabel" not in tasks:
        return
    trial = Trial(subject, multilabel=True)
    batch = trial.batch()
    output = trial.output(batch=batch)
    check_output(output, batch, trial.task.num_classes)
    total = trial.backward(output)
    require(total.isfinite(), f"under multilabel, the objective is {total.item()}")


def supports_small_batches(subject: Subject) -> None:
    """A step works with 2 labeled images.

    Why: large images and several processes leave few images per batch.
    Cause: a split into equal parts, or a hard-coded size.
    """
    _require_finite_step(Trial(subject, batch_size=2), "with 2 labeled images")


def supports_unlabeled_ratios(subject: Subject) -> None:
    """A step works with 1, 3 and 7 unlabeled images per labeled one, if the ratio is an option.

    Why: methods are published with different ratios.
    Cause: views that are reshaped by a fixed ratio or in the wrong order.
    """
    if "unlabeled_ratio" not in subject.plugin.Config.model_fields:
        return
    for ratio in (1, 3, 7):
        trial = Trial(subject, subject.options(unlabeled_ratio=ratio))
        views = trial.algorithm.views()
        if views.needs_unlabeled:
            value = views.unlabeled_ratio
            require(value == ratio, f"with unlabeled_ratio={ratio}, views() returns {value}")
        _require_finite_step(trial, f"with unlabeled_ratio={ratio}")


def supports_non_square_images(subject: Subject) -> None:
    """A step works with images of 8 x 12 pixels.

    Why: only the backbone may depend on the shape of the images.
    Cause: a transposition, or one side that is used for both.
    """
    _require_finite_step(Trial(subject, size=(8, 12)), "with 8 x 12 pixels")


def matches_float32_in_bf16(subject: Subject) -> None:
    """Losses in bf16 are within 15 % of those in float32, averaged over batches.

    Why: GPUs train in bf16, and losses that are far off change the training.
    Cause: softmax, logarithms or small differences in half precision; use .float() first.
    """
    means: dict[str, dict[str, float]] = {"fp32": {}, "bf16": {}}
    batches = 4
    for precision, values in means.items():
        trial = Trial(subject)
        for number in range(batches):
            output = trial.output(batch=trial.batch(number), precision=precision)
            for name, loss in output.losses.items():
                values[name] = values.get(name, 0.0) + loss.value.float().item() / batches
    for name, exact in means["fp32"].items():
        value = means["bf16"][name]
        close = abs(value - exact) <= 0.15 * abs(exact) + 0.02
        require(close, f"loss {name!r} is {value:g} in bf16, but {exact:g} in float32")


def handles_extreme_predictions(subject: Subject) -> None:
    """Losses and gradients are finite if predictions are certain, uniform or below a threshold.

    Why: such predictions occur at the start, after a collapse and on easy data.
    Cause: a division by the number of masked images, or a logarithm of a probability.
    """
    predictions = {"certain": 1e4, "uniform": 0.0, "below any threshold": 1.0}
    for kind, sharpness in predictions.items():
        trial = Trial(subject, sharpness=sharpness)
        output = trial.output()
        where = f"if predictions are {kind},"
        for name, loss in output.losses.items():
            require(loss.value.isfinite(), f"{where} loss {name!r} is {loss.value.item()}")
        trial.backward(output)
        for name, parameter in trial.classifier.named_parameters():
            finite = parameter.grad is None or parameter.grad.isfinite().all()
            require(finite, f"{where} the gradient of {name} is inf or nan")


def learns_toy_images(subject: Subject) -> None:
    """After 40 steps on toy images, the supervised loss is lower and the accuracy at least 60 %.

    Why: every method must learn what a linear classifier learns.
    Cause: a wrong sign, a term that dominates the supervised loss, or a loss of the wrong rows.
    """
    trial = Trial(subject, batch_size=8, sharpness=1)
    trial.fit(40)
    name = "train.loss.supervised"
    losses = [row[name] for row in trial.rows if name in row]
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    require(last < first, f"the loss 'supervised' went from {first:.3g} to {last:.3g}")
    accuracy = trial.accuracy()
    require(accuracy >= 0.6, f"the accuracy is {accuracy:.0%}; chance is 25%")


def _train(subject: Subject, steps: int) -> Trial:
    trial = Trial(subject, sharpness=1)
    trial.fit(steps)
    return trial


def _require_finite_step(trial: Trial, where: str) -> None:
    total = trial.backward(trial.output())
    require(total.isfinite(), f"{where}, the objective is {total.item()}")


def _objective(trial: Trial) -> float:
    seed_everything(SEED)
    return total_loss(trial.output()).item()


def _require_equal(one: Rows, other: Rows, subjects: str) -> None:
    for row, other_row in zip(one, other, strict=True):
        wrong = [n for n in differing(row, other_row) if n not in ("seconds", "images_per_second")]
        for name in wrong[:1]:
            values = f"{row.get(name)} and {other_row.get(name)}"
            require(False, f"{name} of {subjects} differs at step {row['step']}: {values}")
