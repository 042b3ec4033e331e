"""Rules for the construction of an algorithm, and for the output of a step."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from ssl_toolkit.config.run_defaults import check_run_defaults
from ssl_toolkit.engine.compatibility import views_fault
from ssl_toolkit.engine.context import total_loss
from ssl_toolkit.engine.own_modules import declaration_fault, own_modules_fault
from ssl_toolkit.engine.random_orders import seeded_generator
from ssl_toolkit.engine.step_checks import WrongOutputError, check_output
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces import ForwardOutput
from ssl_toolkit.models.predictor import Predictor
from ssl_toolkit.testing import host_sync
from ssl_toolkit.testing.assertions import differing, listed, no_global_draws
from ssl_toolkit.testing.rules import RuleViolationError, require
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import LATE, MIDDLE, STEPS, Trial, tensors_of


def initializes_reproducibly(subject: Subject) -> None:
    """`__init__` only draws from torch's global generator, which is seeded.

    Why: runs with one seed must start from equal weights.
    Cause: weights drawn from numpy or Python's random.
    """
    first, second = Trial(subject), Trial(subject)
    wrong = differing(first.algorithm.state_dict(), second.algorithm.state_dict())
    require(not wrong, f"{listed(wrong)} differ between two instances with one seed")
    with no_global_draws("__init__", ("python", "numpy")):
        subject.plugin(subject.options(), first.task)


def declares_views(subject: Subject) -> None:
    """`views()` returns the same valid views on every call, with augmenters that exist.

    Why: it is called once, before the first step.
    Cause: a count that depends on the step or is negative, or a misspelled augmenter.
    """
    trial = Trial(subject)
    first = trial.algorithm.views()
    trial.output()
    second = trial.algorithm.views()
    fault = views_fault(first, trial.algorithm.augmenters())
    require(not fault, fault)
    require(first == second, f"views() returned {first}, then {second}")


def brings_valid_augmenters(subject: Subject) -> None:
    """Its `augmenters()` draw a prefix of the rows for fewer images, and preserve shape and range.

    Why: processes and compared algorithms share draws, and views are stacked into a batch.
    Cause: several tensors drawn in turn, or a transform that crops without resizing or clamping.
    """
    trial = Trial(subject)
    images = trial.images.loaded.gather(trial.images.labeled)
    for name, augmenter in trial.algorithm.augmenters().items():
        augmenter = augmenter.to(subject.device)
        large, small = (augmenter.draw(n, 8, 8, seeded_generator("contract")) for n in (40, 5))
        wrong = differing({key: large[key][:5] for key in small}, small)
        require(not wrong, f"{name}: {listed(wrong)} for 5 images are not the first rows of 40")
        draws = augmenter.draw(len(images), 8, 8, seeded_generator("contract"))
        views = augmenter.transform(images, draws)
        require(views.shape == images.shape, f"{name}: the shape of views is {tuple(views.shape)}")
        low, high = views.amin().item(), views.amax().item()
        require(low >= 0 and high <= 1, f"{name}: values of views are from {low:g} to {high:g}")


def states_valid_run_defaults(subject: Subject) -> None:
    """`run_defaults` contains settings that an algorithm may set, with valid values.

    Why: otherwise, no run of the algorithm starts.
    Cause: a misspelled setting, or one for the data, length or folder of a run, such as steps.
    """
    try:
        check_run_defaults(subject.plugin.run_defaults, "run_defaults")
    except PluginError as error:
        raise RuleViolationError(str(error)) from error


def declares_metrics(subject: Subject) -> None:
    """`metrics` is a tuple of `Metric`, each with a unique name.

    Why: the report takes title, definition and reduction of a metric from its declaration.
    Cause: a list or a tuple of names, or a metric that is declared twice.
    """
    fault = declaration_fault(subject.plugin)
    require(not fault.startswith("metrics"), fault)


def declares_own_modules(subject: Subject) -> None:
    """`averaged_modules`, `pool_statistics` and `lr_factors` name modules, buffers and parameters.

    Why: a run with unknown names is refused.
    Cause: a misspelled or renamed module, or a list instead of a tuple.
    """
    fault = own_modules_fault(Trial(subject).algorithm)
    require(not fault, fault)


def predicts_purely(subject: Subject) -> None:
    """`predict` and `stranger_scores` are finite, and depend on the image and saved tensors only.

    Why: evaluation, the saved model and its exports call it in any order, and with any batch.
    Cause: a counter, a statistic of the batch, dropout outside of a module, or extra state.
    """
    trial = Trial(subject)
    batch = trial.batch()
    trial.output(batch=batch)
    predictor = trial.trainer.predictor
    algorithm = predictor.algorithm
    if algorithm is None:
        return
    output = trial.context().teacher_forward(batch.labeled_weak[0])
    before = copy.deepcopy(predictor.algorithm_state())
    restored = subject.plugin(subject.options(), trial.task).to(subject.device)
    copied = Predictor(trial.ema.module, restored, subject.name)  # type: ignore[arg-type]
    copied.load(trial.ema.module.state_dict(), before)
    one = ForwardOutput(*(part[:1] for part in output))
    for method, what in (("logits", "logits"), ("stranger_scores", "stranger scores")):
        call = getattr(predictor, method)
        with torch.no_grad(), no_global_draws(" and ".join(predictor.methods)):
            values, again, alone = call(output), call(output), call(one)
            loaded = getattr(copied, method)(output)
        require(values.isfinite().all(), f"{what} are inf or nan")
        require(torch.equal(values, again), f"two calls return different {what} for one output")
        wrong = differing(before, predictor.algorithm_state())
        require(not wrong, f"{' or '.join(predictor.methods)} modifies {listed(wrong)}")
        same = torch.allclose(alone.float(), values[:1].float(), rtol=1e-3, atol=1e-4)
        require(same, f"the {what} of an image change with the other images of its batch")
        same = torch.equal(loaded, values)
        require(same, f"restored from its parameters and buffers, it computes other {what}")


def returns_valid_output(subject: Subject) -> None:
    """The output is valid and the objective finite at the first, middle, late and last steps.

    Why: the engine rejects invalid names, types, shapes and weights, at the last step after hours.
    Cause: a name with capitals, a missing mean(), or a ramp that divides by the remaining steps.
    """
    for step in (0, MIDDLE, LATE, STEPS - 1):
        trial = Trial(subject)
        batch = trial.batch()
        output = trial.output(step, batch=batch)
        where = f"at step {step} of {STEPS},"
        try:
            check_output(output, batch, trial.task.num_classes)
        except WrongOutputError as error:
            raise WrongOutputError(f"{where} step {error}") from error
        names = [*output.losses]
        require("supervised" in names, f"{where} no loss is named 'supervised': {listed(names)}")
        total = trial.backward(output)
        require(total.isfinite(), f"{where} the objective is {total.item()}")


def returns_finite_float32_losses(subject: Subject) -> None:
    """Losses are finite and have at least float32 precision, under autocast too.

    Why: the sum of the losses is the objective; half precision loses small gradients.
    Cause: logits that are not converted by .float() under autocast.
    """
    for precision in ("fp32", "bf16"):
        for name, loss in Trial(subject).output(precision=precision).losses.items():
            dtype, value = loss.value.dtype, loss.value
            message = f"with {precision}, loss {name!r} is"
            require(dtype in (torch.float32, torch.float64), f"{message} {dtype}")
            require(value.isfinite(), f"{message} {value.item()}")


def returns_probabilities(subject: Subject) -> None:
    """Rows of `pseudo_labels.probs` are nonnegative and sum to 1; weights are in [0, 1].

    Why: the reports on pseudo labels treat them as probabilities.
    Cause: sharpening without normalization, or logits instead of probabilities.
    """
    pseudo_labels = Trial(subject).output().pseudo_labels
    if pseudo_labels is None:
        return
    probs = pseudo_labels.probs.detach().float()
    require((probs >= 0).all(), f"the smallest entry is {probs.amin().item():g}")
    sums = probs.sum(dim=-1)
    extreme = float(sums[(sums - 1).abs().argmax()])
    require(abs(extreme - 1) < 1e-3, f"a row sums to {extreme:g}")
    if (weights := pseudo_labels.weights) is not None:
        valid = ((weights >= 0) & (weights <= 1)).all()
        require(valid, "pseudo_labels.weights has entries outside [0, 1]")


def detaches_reported_tensors(subject: Subject) -> None:
    """Metrics and pseudo labels carry no gradient.

    Why: metrics stay in memory until they are logged, and so would the activations of their step.
    Cause: a missing detach().
    """
    output = Trial(subject).output()
    reported: dict[str, Tensor] = {**output.metrics}
    if output.pseudo_labels is not None:
        reported["pseudo_labels.probs"] = output.pseudo_labels.probs
        if output.pseudo_labels.weights is not None:
            reported["pseudo_labels.weights"] = output.pseudo_labels.weights
    attached = [name for name, tensor in reported.items() if tensor.requires_grad]
    require(not attached, f"{listed(attached)} carry a gradient")


def avoids_host_sync(subject: Subject) -> None:
    """A step transfers nothing from the device to the host.

    Why: the GPU idles while the host waits for a value, the usual reason for slow steps.
    Cause: item(), float(loss), `if mask.any()`, or indexing with a mask; use torch.where.
    """
    trial = Trial(subject)
    batch = trial.batch()
    modules = trial.classifier, trial.trainer.predictor, trial.algorithm
    state = [t for m in modules for t in (*m.parameters(), *m.buffers())]
    trial.output()  # one-time work may synchronize
    around = host_sync.forbid(subject.device, [*tensors_of(batch).values(), *state])
    trial.output(batch=batch, around=around)


def disables_loss_at_zero_weight(subject: Subject) -> None:
    """An option `NAME_weight` of 0 gives the loss NAME the weight 0.

    Why: users disable a term by its weight, as in an ablation.
    Cause: the weight is multiplied into the value, or the term has another constant factor.
    """
    options = [name for name in subject.plugin.Config.model_fields if name.endswith("_weight")]
    for option in options:
        try:
            config = subject.options(**{option: 0})
        except ValueError:  # 0 is out of range
            continue
        losses = Trial(subject, config).output().losses
        loss = losses.get(option.removesuffix("_weight"))
        if loss is not None:
            require(float(loss.weight) == 0, f"{option}=0, but the loss has weight {loss.weight}")
        else:
            disabled = any(not loss.weight or not loss.value.item() for loss in losses.values())
            require(disabled, f"{option}=0 disables none of the losses {listed(losses)}")


def uses_labels(subject: Subject) -> None:
    """The objective depends on the labels of the batch.

    Why: otherwise nothing is learned from the labeled images.
    Cause: labels that are replaced by pseudo labels or indexed incorrectly.
    """
    trial = Trial(subject)
    batch = trial.batch()
    other = replace(batch, labels=(batch.labels + 1) % trial.task.num_classes)
    values = [total_loss(Trial(subject).output(batch=b)) for b in (batch, other)]
    require(not torch.equal(*values), f"the objective is {values[0].item():g} for both")


def uses_unlabeled_images(subject: Subject) -> None:
    """The objective depends on the unlabeled views, if there are any.

    Why: unused views cost time, and the method would be a supervised one.
    Cause: a mask that is always False, a detached term, or a term with weight 0.
    """
    trial = Trial(subject)
    if not trial.algorithm.views().needs_unlabeled:
        return
    batch, second = trial.batch(), trial.batch(1)
    sources = {name: view.source for name, view in trial.algorithm.views().extra.items()}
    other = replace(
        batch,
        unlabeled_weak=second.unlabeled_weak,
        unlabeled_strong=second.unlabeled_strong,
        extra={
            name: (second if sources[name] == "unlabeled" else batch).extra[name]
            for name in batch.extra
        },
    )
    values = [total_loss(Trial(subject).output(batch=b)) for b in (batch, other)]
    require(not torch.equal(*values), f"the objective is {values[0].item():g} for both")
