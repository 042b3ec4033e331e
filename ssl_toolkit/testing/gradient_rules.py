"""Rules for gradients, and for tensors and modules that a step must not modify."""

from __future__ import annotations

from ssl_toolkit.testing.assertions import differing, listed, require_gradients, unmodified
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import MIDDLE, Trial, tensors_of


def trains_all_model_parameters(subject: Subject) -> None:
    """Every trainable parameter of the model gets a finite, nonzero gradient.

    Why: a parameter without a gradient keeps its initial value.
    Cause: an unnecessary detach() or no_grad().
    """
    trial = Trial(subject)
    trial.backward(trial.output())
    require_gradients(trial.classifier)
    for name, parameter in trial.classifier.named_parameters():
        require(parameter.grad is None or parameter.grad.any(), f"the gradient of {name} is 0")


def trains_its_parameters(subject: Subject) -> None:
    """Every trainable parameter of the algorithm gets a gradient at the first or a middle step.

    Why: the parameters of the algorithm are optimized together with the model.
    Cause: a head that no loss uses, or a detach() before it.
    """
    has_gradient: dict[str, bool] = {}
    for step in (0, MIDDLE):
        trial = Trial(subject)
        trial.backward(trial.output(step))
        for name, parameter in trial.algorithm.named_parameters():
            if parameter.requires_grad:
                has_gradient[name] = has_gradient.get(name, False) or parameter.grad is not None
    untrained = [name for name, reached in has_gradient.items() if not reached]
    require(not untrained, f"{listed(untrained)} get no gradient")


def does_not_train_teacher(subject: Subject) -> None:
    """The teacher gets no gradient.

    Why: the teacher is the average of the model's weights.
    Cause: a forward of the averaged module itself; use ctx.teacher.
    """
    trial = Trial(subject)
    trial.backward(trial.output())
    wrong = [name for name, p in trial.ema.module.named_parameters() if p.grad is not None]
    require(not wrong, f"{listed(wrong)} of the teacher get a gradient")


def does_not_modify_model(subject: Subject) -> None:
    """A step modifies no weight, gradient or mode of the model and the teacher.

    Why: only the optimizer and the weight average change weights; other changes are lost when a
    run is resumed.
    Cause: backward() inside the step, weights modified in place, or a call of train() or eval().
    """
    trial = Trial(subject)
    model, teacher = trial.classifier.train(), trial.ema.module
    tensors = {f"model.{name}": p for name, p in model.named_parameters()}
    # The model's buffers, the statistics of BatchNorm, change in every forward.
    tensors |= {f"teacher.{name}": p for name, p in teacher.named_parameters()}
    buffers = {f"teacher.{name}": b for name, b in teacher.named_buffers()}
    before = {name: t.detach().clone() for name, t in (tensors | buffers).items()}
    trial.output()
    wrong = differing(before, tensors | buffers)
    require(not wrong, f"the step modifies {listed(wrong)}")
    wrong = [name for name, parameter in tensors.items() if parameter.grad is not None]
    require(not wrong, f"the step computes gradients of {listed(wrong)}")
    for name, module, training in (("model", model, True), ("teacher", teacher, False)):
        unchanged = {part.training for part in module.modules()} == {training}
        require(unchanged, f"the step changes the mode of the {name} (train or eval)")


def does_not_modify_batch(subject: Subject) -> None:
    """The tensors of the batch are not modified.

    Why: the engine uses the batch again for metrics.
    Cause: an in-place operation on a view of the batch.
    """
    trial = Trial(subject)
    batch = trial.batch()
    with unmodified(tensors_of(batch)):
        trial.backward(trial.output(batch=batch))
