"""Optimizers and the learning rate over the steps."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from ssl_toolkit import ops
from ssl_toolkit.config.sections import OptimizerSettings, ScheduleSettings
from ssl_toolkit.engine.own_modules import lr_factor
from ssl_toolkit.interfaces import Algorithm
from ssl_toolkit.models.classifier import Classifier
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
    """
    backbone_lr = settings.backbone_lr if isinstance(settings.backbone_lr, float) else lr
    groups = parameter_groups(
        classifier, algorithm, lr, backbone_lr, settings.weight_decay, settings.weight_decay_on
    )
    for group in groups:
        group["base_lr"] = group["lr"]
    if settings.name == "adamw":
        return without_compiler(AdamW)(groups, fused=True)
    nesterov = settings.nesterov and settings.momentum > 0
    momentum = settings.momentum
    return without_compiler(SGD)(groups, momentum=momentum, nesterov=nesterov, fused=True)


def parameter_groups(
    classifier: Classifier,
    algorithm: Algorithm | None,
    lr: float,
    backbone_lr: float | None = None,
    weight_decay: float = 0.0,
    decay_on: Literal["all", "kernels"] = "all",
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
            dimensions or more, which leaves out biases and normalization (MixMatch, FixMatch).

    Returns:
        Dicts with ``name`` ("features", "classifier", "algorithm", "algorithm.PREFIX" for a factor;
        "….undecayed" for the ones without decay), ``params``, ``lr`` and ``weight_decay``.
    """
    in_head = {id(parameter) for parameter in classifier.head.parameters()}
    groups: dict[str, dict[str, Any]] = {}

    def add(parameter: nn.Parameter, name: str, rate: float) -> None:
        if not parameter.requires_grad:
            return
        decays = decay_on == "all" or parameter.ndim >= 2
        name += "" if decays else ".undecayed"
        decay = weight_decay if decays else 0.0
        group = {"name": name, "params": [], "lr": rate, "weight_decay": decay}
        groups.setdefault(name, group)["params"].append(parameter)

    for parameter in classifier.parameters():
        if id(parameter) in in_head:
            add(parameter, "classifier", lr)
        else:
            add(parameter, "features", lr if backbone_lr is None else backbone_lr)
    if algorithm is not None:
        for path, parameter in algorithm.named_parameters():
            prefix, factor = lr_factor(algorithm, path)
            add(parameter, f"algorithm.{prefix}" if prefix else "algorithm", factor * lr)
    return list(groups.values())


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
