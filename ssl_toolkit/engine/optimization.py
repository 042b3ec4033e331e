"""Optimizers and the learning rate over the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from ssl_toolkit import ops
from ssl_toolkit.config.arguments import check_arguments
from ssl_toolkit.config.sections import OptimizerSettings, ScheduleSettings
from ssl_toolkit.engine.own_modules import lr_factor
from ssl_toolkit.errors import ConfigError, one_line
from ssl_toolkit.interfaces import Algorithm
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.freezing import inner_module
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.torch_workarounds import norms, without_compiler


def build_optimizer(
    classifier: Classifier, algorithm: Algorithm, settings: OptimizerSettings, lr: float
) -> Optimizer:
    """Return the optimizer of a run, its groups at their full learning rate.

    Args:
        classifier: backbone and head; ``backbone_lr``, if set, is the rate of the backbone.
        algorithm: its parameters are trained like the head, with its factors on the rate.
        settings: rule, decay and momentum.
        lr: learning rate of the head.

    Raises:
        ConfigError: the optimizer or its arguments are unknown, or the backbone has no layers.
    """
    backbone_lr = settings.backbone_lr if isinstance(settings.backbone_lr, float) else lr
    groups = parameter_groups(
        classifier,
        algorithm,
        lr,
        backbone_lr,
        settings.weight_decay,
        settings.weight_decay_on,
        settings.layer_decay,
    )
    for group in groups:
        group["base_lr"] = group["lr"]
    return _make(settings, groups, lr)


def check_optimizer(settings: OptimizerSettings) -> None:
    """Check the name and the arguments of an optimizer; imports timm for one of its optimizers.

    Raises:
        ConfigError: the optimizer is unknown, can't be used in a run, or has no such argument.
    """
    name, arguments = settings.name, settings.args
    rule: Callable[..., Any] | None = {"sgd": SGD, "adamw": AdamW}.get(name)
    if rule is None:
        import timm.optim

        untyped: Any = timm.optim
        known = untyped.list_optimizers(with_description=False)
        if name not in known:
            raise ConfigError(
                f"optimizer.name: unknown optimizer {name!r}{did_you_mean(name, known)}; known: "
                "adamw, sgd and those of timm.optim.list_optimizers()"
            )
        info = untyped.get_optimizer_info(name)
        fault = ""
        if isinstance(info.opt_class, str):
            fault = f"needs the package {info.opt_class.partition('.')[0]} and a GPU"
        elif info.second_order:
            fault = "needs a closure and gradients of gradients"
        elif info.opt_class.__name__ == "Kron":
            fault = "draws random numbers, which would differ between processes"
        if fault:
            raise ConfigError(f"optimizer.name: {name} {fault}; use another one, such as lamb")
        rule = untyped.get_optimizer_class(name, bind_defaults=False)
    if arguments or name not in ("sgd", "adamw"):
        check_arguments("optimizer.args", arguments, rule, f"optimizer {name}", _RESERVED)
        try:
            parameter = nn.Parameter(torch.zeros(2, 2))
            parameter.grad = torch.ones(2, 2)
            optimizer = _make(settings, [{"params": [parameter]}], 0.1)
            with torch.random.fork_rng(devices=[]):
                optimizer.step()  # most of timm's optimizers read their arguments in a step only
        except Exception as error:  # of any class of timm
            reason = one_line(f"{type(error).__name__}: {error}")
            raise ConfigError(
                f"optimizer.args: {name} can't be built with {arguments} ({reason})"
            ) from error


_RESERVED = ("params", "lr", "weight_decay", "momentum", "nesterov", "fused", "maximize")


def _make(settings: OptimizerSettings, groups: list[dict[str, Any]], lr: float) -> Optimizer:
    momentum, arguments = settings.momentum, settings.args
    if settings.name == "adamw":
        return without_compiler(AdamW)(groups, fused=True, **arguments)
    if settings.name == "sgd":
        nesterov = settings.nesterov and momentum > 0
        make = without_compiler(SGD)
        return make(groups, momentum=momentum, nesterov=nesterov, fused=True, **arguments)
    import timm.optim

    untyped: Any = timm.optim
    optimizer: Optimizer = untyped.create_optimizer_v2(
        groups, opt=settings.name, lr=lr, momentum=momentum, **arguments
    )
    return optimizer


def parameter_groups(
    classifier: Classifier,
    algorithm: Algorithm | None,
    lr: float,
    backbone_lr: float | None = None,
    weight_decay: float = 0.0,
    decay_on: Literal["all", "kernels", "timm"] = "all",
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Return groups for a torch optimizer by learning rate, with and without decay.

    Parameters that need no gradient are left out, and so are empty groups.

    Args:
        classifier: backbone and head.
        algorithm: its own parameters follow; None for none.
        lr: learning rate of the head, and of the backbone where `backbone_lr` is None.
        backbone_lr: learning rate of the backbone, as in SimPLE's transfer runs.
        weight_decay: for the parameters that decay.
        decay_on: "all" parameters, as in SimPLE's published code, or "kernels" only: those with two
            dimensions or more, which leaves out biases and normalization (MixMatch, FixMatch);
            "timm" also leaves out those of the model's ``no_weight_decay``.
        layer_decay: factor on the rate from each layer to the one below it; None for none.

    Returns:
        Dicts with ``name`` ("features", "classifier", "algorithm", "algorithm.PREFIX" for a factor,
        "features.SCALE" under `layer_decay`; "….undecayed" for the ones without decay),
        ``params``, ``lr`` and ``weight_decay``.

    Raises:
        ConfigError: with `layer_decay`, the backbone is frozen, or does not assign its parameters
            to layers.
    """
    scales = {} if layer_decay is None else _layer_scales(classifier, layer_decay)
    model = inner_module(classifier.backbone)
    exempt: Any = getattr(model, "no_weight_decay", tuple)() if decay_on == "timm" else ()
    undecayed = {id(parameter) for name, parameter in model.named_parameters() if name in exempt}
    in_head = {id(parameter) for parameter in classifier.head.parameters()}
    groups: dict[str, dict[str, Any]] = {}

    def add(parameter: nn.Parameter, name: str, rate: float) -> None:
        if not parameter.requires_grad:
            return
        decays = decay_on == "all" or (parameter.ndim >= 2 and id(parameter) not in undecayed)
        name += "" if decays else ".undecayed"
        decay = weight_decay if decays else 0.0
        group = {"name": name, "params": [], "lr": rate, "weight_decay": decay}
        groups.setdefault(name, group)["params"].append(parameter)

    for parameter in classifier.parameters():
        if id(parameter) in in_head:
            add(parameter, "classifier", lr)
        else:
            scale = scales.get(id(parameter), 1.0)
            name = f"features.{scale:.4g}" if scales else "features"
            add(parameter, name, scale * (lr if backbone_lr is None else backbone_lr))
    if algorithm is not None:
        for path, parameter in algorithm.named_parameters():
            prefix, factor = lr_factor(algorithm, path)
            add(parameter, f"algorithm.{prefix}" if prefix else "algorithm", factor * lr)
    return list(groups.values())


def _layer_scales(classifier: Classifier, layer_decay: float) -> dict[int, float]:
    """Return the factor on the rate of each trained parameter, by its id, as timm computes it."""
    import timm.optim

    untyped: Any = timm.optim
    model = inner_module(classifier.backbone)
    if not hasattr(model, "group_matcher"):
        raise ConfigError(
            f"optimizer.layer_decay: backbone {type(model).__name__} has no group_matcher that "
            "assigns its parameters to layers; leave it out"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "optimizer.layer_decay: the backbone is frozen; train it with model.freeze=none, or "
            "leave layer_decay out"
        )
    groups = untyped.param_groups_layer_decay(
        _WithHead(model, classifier.head), layer_decay=layer_decay
    )
    return {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}


class _WithHead:
    """A network for timm to group: a model, and a head under the name that timm gives it."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        self._model, self._head = model, head
        self.group_matcher = model.group_matcher

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over names and parameters, those of the head last."""
        yield from self._model.named_parameters()
        named = getattr(self._model, "pretrained_cfg", {}).get("classifier") or "head"
        prefix = named if isinstance(named, str) else named[0]
        for name, parameter in self._head.named_parameters():
            yield f"{prefix}.{name}", parameter


def learning_rate(optimizer: Optimizer) -> float:
    """Return the current learning rate of the classifier, or of the first group without one."""
    groups = {group["name"]: group["lr"] for group in optimizer.param_groups}
    return float(groups.get("classifier", next(iter(groups.values()))))


def set_learning_rate(
    optimizer: Optimizer, schedule: ScheduleSettings, step: int, max_steps: int
) -> float:
    """Set every group's rate for the update after `step` updates, and return the multiplier.

    The rate is a pure function of the step, so that a schedule has no state to save.
    """
    if schedule.name == "cosine":
        factor = ops.cosine_factor(step, max_steps, schedule.warmup_steps, schedule.cycles)
    else:
        warming = step < schedule.warmup_steps
        factor = step / schedule.warmup_steps if warming else 1.0
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return factor


def unfinished_warm_up(schedule: ScheduleSettings, rate: float, max_steps: int) -> str:
    """Return a warning if a run ends before its warm-up; empty otherwise."""
    if schedule.warmup_steps < max_steps:
        return ""
    reached = rate * (max_steps - 1) / schedule.warmup_steps
    return (
        f"schedule.warmup_steps ({schedule.warmup_steps}) is not below steps ({max_steps}), so the "
        f"learning rate reaches {reached:.3g} instead of {rate:g}; use fewer warm-up steps or more "
        "--steps"
    )


def gradient_norm(optimizer: Optimizer) -> Tensor:
    """Return the Euclidean norm of the gradient, a scalar on its device, without waiting for it.

    It is infinite or nan where a part is, infinite from about 1e19 on, and 0 without gradients.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    parts = norms(gradients) if gradients else [parameters[0].new_zeros(())]
    norm: Tensor = torch.linalg.vector_norm(torch.stack([part.float() for part in parts]))
    return norm
