"""LoRA: trained low-rank adapters of a frozen backbone, merged into its weights at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ssl_toolkit.config.images import Size, sides
from ssl_toolkit.config.sections import LoraSettings
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.models.classifier import Classifier, in_eval_mode
from ssl_toolkit.models.freezing import inner_module
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.torch_workarounds import BatchNorm

ATTENTION = frozenset({"qkv", "q", "k", "v", "kv", "q_proj", "k_proj", "v_proj"})
"""Names of the layers of attention that are adapted by default, as in Hu et al., ICLR 2022."""


def require_peft() -> Any:
    """Import and return peft.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            f"lora.rank: LoRA needs the package peft ({error}): pip install 'ssl-toolkit[peft]'"
        ) from error
    return peft


def add_adapters(
    classifier: Classifier, settings: LoraSettings, image_size: Size, seed: int
) -> None:
    """Freeze the backbone and add adapters to it, if the rank is not 0.

    The adapters start as zeros, so the output does not change. The backbone's own weights have no
    gradient, and its BatchNorm layers stay in eval mode; dropout and drop path are active in
    training. torch's global generators keep their state.

    Args:
        classifier: Classifier, changed in place.
        settings: Rank and layers of the adapters.
        image_size: Size of the images in pixels.
        seed: Seed of the random factors.

    Raises:
        ConfigError: peft is missing, or the backbone has no such layers.
    """
    if not settings.rank:
        return
    peft, backbone = require_peft(), classifier.backbone
    targets = _targets(backbone, settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        peft.inject_adapter_in_model(config, backbone)
    classifier.frozen += [layer for layer in backbone.modules() if isinstance(layer, BatchNorm)]
    classifier.lora = settings.model_dump()
    classifier.train(classifier.training)
    _check_use(classifier, targets, image_size)


def merge_adapters(module: nn.Module) -> None:
    """Replace adapted layers by plain ones with the same output, in a module and its submodules.

    Args:
        module: Module, changed in place; a module without adapters stays as it is.
    """
    adapted = [one for one in module.modules() if isinstance(one, Classifier) and one.lora]
    if not adapted:
        return
    require_peft()
    from peft.tuners.lora import LoraLayer

    for parent in module.modules():
        for name, layer in parent.named_children():
            if isinstance(layer, LoraLayer):
                layer.merge()
                setattr(parent, name, layer.get_base_layer())
    for classifier in adapted:
        classifier.lora = {}
        del classifier.backbone.peft_config


def _targets(backbone: nn.Module, names: list[str]) -> list[str]:
    """Return the full names of the layers to adapt.

    Subclasses, such as convolutions with the padding of TensorFlow, compute something else than
    the adapter assumes.
    """
    layers = {
        name: layer
        for name, layer in backbone.named_modules()
        if type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1)
    }
    last = {name: name.rpartition(".")[2] for name in layers}
    if names:
        found = [one for one in layers if any(f".{one}".endswith(f".{name}") for name in names)]
        missing = [n for n in names if not any(f".{one}".endswith(f".{n}") for one in layers)]
    else:
        found = [name for name in layers if last[name] in ATTENTION] or list(layers)
        missing = [] if found else ["qkv"]
    if missing:
        known = sorted(set(last.values()))
        raise ConfigError(
            f"lora.targets: {type(inner_module(backbone)).__name__} has no linear layer or "
            f"convolution {missing[0]!r}{did_you_mean(missing[0], known)}; it has "
            f"{', '.join(known) or 'none'}"
        )
    return found


def _check_use(classifier: Classifier, targets: list[str], image_size: Size) -> None:
    """Refuse adapters that the backbone bypasses: some models read weights of a layer directly."""
    used: set[str] = set()
    hooks = [
        classifier.backbone.get_submodule(name).register_forward_hook(
            lambda *_, name=name: used.add(name)
        )
        for name in targets
    ]
    try:
        with torch.no_grad(), in_eval_mode(classifier):
            images = classifier.mean.new_zeros(1, classifier.channels, *sides(image_size))
            classifier.backbone(images)
    finally:
        for hook in hooks:
            hook.remove()
    if bypassed := [name for name in targets if name not in used]:
        raise ConfigError(
            f"lora.targets: the backbone reads the weights of {bypassed[0].removeprefix('model.')} "
            "without calling the layer, so an adapter would have no effect; choose other layers"
        )
