"""Rules on how an algorithm is made, and on its losses."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.engine.context import total_loss
from ssl_toolkit.engine.step_checks import is_name, is_weight
from ssl_toolkit.interfaces import StepOutput, Views
from ssl_toolkit.testing.rules import BrokenRuleError, require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import LATE, MIDDLE, STEPS, Trial, differing, listed

# --- making one ---------------------------------------------------------------------------------


@rule(
    "algorithms",
    why="two runs of one seed start alike, and nothing else in the process affects it.",
    cause="weights drawn with numpy or Python's random; torch's generator is seeded before",
)
def construction_is_reproducible(subject: Subject) -> None:
    """`__init__` draws from torch's seeded generator alone."""
    first, second = Trial(subject), Trial(subject)
    wrong = differing(first.algorithm.state_dict(), second.algorithm.state_dict())
    require(not wrong, f"made twice under one seed, {listed(wrong)} differ")
    before = random_states()
    subject.plugin(subject.options(), first.task)
    after = random_states()
    used = [name for name in ("python", "numpy") if before[name] != after[name]]
    require(not used, f"__init__ draws from the global generator of {listed(used)}")


@rule(
    "algorithms",
    why="views are requested once; the engine uses that answer at every step.",
    cause="views() depends on a counter, or returns a count below 0",
)
def views_are_constant(subject: Subject) -> None:
    """`views()` gives the same whole numbers whenever it is called."""
    trial = Trial(subject)
    first = trial.algorithm.views()
    trial.output()
    second = trial.algorithm.views()
    require(isinstance(first, Views), f"views() is {first!r}, no Views")
    require(first == second, f"views() was {first}, then {second}")
    counts = {field.name: getattr(first, field.name) for field in fields(first)}
    wrong = {name: value for name, value in counts.items() if type(value) is not int or value < 0}
    require(not wrong, f"views() has {wrong}; counts are whole numbers from 0")
    require(first.unlabeled_ratio >= 1, "views() has unlabeled_ratio 0; it is at least 1")


# --- losses -------------------------------------------------------------------------------------


@rule(
    "algorithms",
    why="names become columns of the metrics; health checks look for `supervised`.",
    cause="a name with capitals, spaces or dots, or the labeled loss under another name",
)
def losses_are_named(subject: Subject) -> None:
    """Losses have names of lower-case letters, digits and underscores, one being `supervised`."""
    names = [*Trial(subject).output().losses]
    wrong = [name for name in names if not is_name(name)]
    require(not wrong, f"losses are called {listed(wrong)}")
    require("supervised" in names, f"no loss is called 'supervised', only {listed(names)}")


@rule(
    "algorithms",
    why="the sum of losses is what is trained on; in half precision it loses small gradients.",
    cause="a missing mean(), or logits that were not raised by .float() under autocast",
)
def losses_are_finite_scalars(subject: Subject) -> None:
    """Each loss is a finite 0-dim tensor, float32 or wider, under autocast too."""
    for precision in ("fp32", "bf16"):
        losses = Trial(subject).output(precision=precision).losses
        require(losses, "there are no losses")
        for name, loss in losses.items():
            value = loss.value
            message = f"in {precision} loss {name!r} is"
            if not isinstance(value, Tensor):
                raise BrokenRuleError(f"{message} {value!r}, no tensor")
            require(value.ndim == 0, f"{message} of shape {tuple(value.shape)}")
            require(value.dtype in (torch.float32, torch.float64), f"{message} {value.dtype}")
            require(value.isfinite(), f"{message} {value.item()}")


@rule(
    "algorithms",
    why="a negative weight pushes away from what the loss is for; nan ruins all weights.",
    cause="a ramp that isn't clamped, or a tensor in place of a number",
)
def weights_are_not_negative(subject: Subject) -> None:
    """The weight of each loss is a finite number of at least 0."""
    for step in (MIDDLE, LATE):
        _check_weights(Trial(subject).output(step), f"at step {step} of {STEPS}")


@rule(
    "algorithms",
    why="ramps and schedules fail at their ends, the last one after hours.",
    cause="a division by the remaining steps, or a logarithm of 0 at the start",
)
def first_and_last_step_work(subject: Subject) -> None:
    """The first and the last step have a finite objective and weights of at least 0."""
    for step in (0, STEPS - 1):
        trial = Trial(subject)
        output = trial.output(step)
        _check_weights(output, f"at step {step} of {STEPS}")
        total = trial.backward(output)
        require(total.isfinite(), f"at step {step} of {STEPS} the objective is {total.item()}")


@rule(
    "algorithms",
    why="users switch a term off by its weight, and ablations are read that way.",
    cause="the weight is multiplied into the value, or a term has a second, fixed factor",
)
def weight_of_zero_silences_its_loss(subject: Subject) -> None:
    """An option `NAME_weight` of 0 gives the loss NAME the weight 0."""
    config = subject.plugin.Config
    names = [name for name in config.model_fields if name.endswith("_weight")]
    for option in names:
        try:
            changed = subject.options(**{option: 0})
        except ValueError:  # the range leaves 0 out
            continue
        losses = Trial(subject, changed).output().losses
        loss = losses.get(option.removesuffix("_weight"))
        if loss is not None:
            require(float(loss.weight) == 0, f"{option}=0, but the loss has weight {loss.weight}")
        else:
            silent = any(not loss.weight or not loss.value.item() for loss in losses.values())
            require(silent, f"{option}=0 silences none of the losses {listed([*losses])}")


@rule(
    "algorithms",
    why="without it the few labels teach nothing.",
    cause="the labels are replaced by pseudo labels, or indexed wrongly",
)
def labels_matter(subject: Subject) -> None:
    """The objective changes when the labels of the batch do."""
    trial = Trial(subject)
    batch = trial.batch()
    other = replace(batch, labels=(batch.labels + 1) % trial.task.num_classes)
    first, second = (total_loss(Trial(subject).output(batch=b)) for b in (batch, other))
    require(not torch.equal(first, second), f"the objective is {first.item():g} for both")


@rule(
    "algorithms",
    why="views that change nothing cost time and make the method a supervised one.",
    cause="a mask that never passes, a detached term, or a term with weight 0",
)
def unlabeled_images_matter(subject: Subject) -> None:
    """If unlabeled views are requested, the objective depends on them."""
    trial = Trial(subject)
    if not trial.algorithm.views().needs_unlabeled:
        return
    batch, second = trial.batch(), trial.batch(1)
    other = replace(
        batch,
        unlabeled_weak=second.unlabeled_weak,
        unlabeled_strong=second.unlabeled_strong,
    )
    values = [total_loss(Trial(subject).output(batch=b)) for b in (batch, other)]
    require(not torch.equal(*values), f"the objective is {values[0].item():g} for both")


def _check_weights(output: StepOutput, when: str) -> None:
    for name, loss in output.losses.items():
        good = is_weight(loss.weight)
        require(good, f"{when} the weight of loss {name!r} is {loss.weight!r}")
