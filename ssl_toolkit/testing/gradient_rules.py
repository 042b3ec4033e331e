"""Rules on gradients, and on what a step has to leave alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ssl_toolkit.testing.rules import require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import MIDDLE, Trial, listed, tensors_of


@rule(
    "algorithms",
    why="a part without gradient stays as it was drawn.",
    cause="a detach() or no_grad() too many",
)
def gradient_reaches_the_model(subject: Subject) -> None:
    """Every trainable parameter of the model gets a finite gradient that is not all 0."""
    trial = Trial(subject)
    trial.backward(trial.output())
    for name, parameter in trial.classifier.named_parameters():
        gradient = parameter.grad
        require(gradient is not None, f"{name} gets no gradient")
        assert gradient is not None
        require(gradient.isfinite().all(), f"the gradient of {name} is not finite")
        require(gradient.any(), f"the gradient of {name} is 0 everywhere")


@rule(
    "algorithms",
    why="parameters of the algorithm are optimized with the model, and saved with the run.",
    cause="a head that no loss uses, or a detach() before it",
)
def gradient_reaches_own_parameters(subject: Subject) -> None:
    """Every trainable parameter of the algorithm gets a gradient at its first or middle step."""
    reached: set[str] = set()
    own: set[str] = set()
    for step in (0, MIDDLE):
        trial = Trial(subject)
        trial.backward(trial.output(step))
        found = [(n, p) for n, p in trial.algorithm.named_parameters() if p.requires_grad]
        own |= {name for name, _ in found}
        reached |= {name for name, parameter in found if parameter.grad is not None}
    require(own <= reached, f"{listed(sorted(own - reached))} get no gradient")


@rule(
    "algorithms",
    why="the teacher is the average of the model; training it makes it a second model.",
    cause="the averaged module was taken out of the context; use ctx.teacher",
)
def teacher_gets_no_gradient(subject: Subject) -> None:
    """No gradient reaches the teacher."""
    trial = Trial(subject)
    trial.backward(trial.output())
    reached = [name for name, p in trial.ema.module.named_parameters() if p.grad is not None]
    require(not reached, f"{listed(reached)} of the teacher get a gradient")


@rule(
    "algorithms",
    why="only the optimizer and the average change weights; anything else is lost on resuming, "
    "or differs between algorithms that are compared.",
    cause="backward() inside the step, weights written in place, or a mode left switched",
)
def model_is_left_alone(subject: Subject) -> None:
    """A step changes no weight, gradient or mode of model and teacher."""
    trial = Trial(subject)
    models = {"model": trial.classifier, "teacher": trial.ema.module}
    trial.classifier.train()
    before = {
        (who, name): tensor.detach().clone()
        for who, module in models.items()
        for name, tensor in _watched(module, who)
    }
    trial.output()
    for who, module in models.items():
        for name, tensor in _watched(module, who):
            require(torch.equal(tensor, before[who, name]), f"{name} of the {who} was changed")
            require(tensor.grad is None, f"{name} of the {who} has a gradient after the step")
        modes = {part.training for part in module.modules()}
        wanted = who == "model"
        require(modes == {wanted}, f"the {who} is not in {'train' if wanted else 'eval'} mode")


@rule(
    "algorithms",
    why="the engine may use the batch again, for its metrics and under accumulation.",
    cause="an operation whose name ends in an underscore on a view of the batch",
)
def batch_is_left_alone(subject: Subject) -> None:
    """The tensors of the batch are not written to."""
    trial = Trial(subject)
    batch = trial.batch()
    before = {name: (t.clone(), t._version) for name, t in tensors_of(batch).items()}
    trial.backward(trial.output(batch=batch))
    for name, tensor in tensors_of(batch).items():
        same = torch.equal(tensor, before[name][0]) and tensor._version == before[name][1]
        require(same, f"batch.{name} was written to")


def _watched(module: torch.nn.Module, who: str) -> list[tuple[str, Tensor]]:
    """Parameters, and of the teacher the statistics too: a forward changes the model's."""
    buffers = module.named_buffers() if who == "teacher" else ()
    return [*module.named_parameters(), *buffers]
