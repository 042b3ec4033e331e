"""Freeze parts of a classifier."""

from __future__ import annotations

from torch import nn

from ssl_toolkit.errors import ConfigError
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.torch_workarounds import BatchNorm


def freeze(classifier: Classifier, what: str) -> None:
    """Freeze a part of the backbone: no gradient, and BatchNorm by its running statistics.

    Args:
        classifier: The classifier, changed in place.
        what: ``none``; ``backbone``, all of it; ``bn``, the weights and statistics of the BatchNorm
            layers, of which transformers have none; or the name of a part of the backbone
            (``layer2``, ``blocks.3``): this part and all parts before it.

    Raises:
        ConfigError: The backbone has no such part.
    """
    backbone = classifier.backbone
    if what == "none":
        frozen: list[nn.Module] = []
    elif what == "backbone":
        frozen = [backbone]
    elif what == "bn":
        frozen = [layer for layer in backbone.modules() if isinstance(layer, BatchNorm)]
    else:
        frozen = _until(backbone, what)
    for module in frozen:
        module.requires_grad_(False)
    classifier.frozen = frozen
    classifier.train(classifier.training)


def has_batchnorm(module: nn.Module) -> bool:
    """Return True if a module or one of its submodules is a BatchNorm layer."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


def _until(backbone: nn.Module, name: str) -> list[nn.Module]:
    """Return the parts of a backbone up to and including the named one, in order of definition."""
    module, frozen = inner_module(backbone), []
    for place, part in enumerate(name.split(".")):
        # A position table or a class token of a transformer comes before its first block.
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
        children = dict(module.named_children())
        if part not in children:
            known = _names(module)
            above = ".".join(name.split(".")[:place]) or "the backbone"
            raise ConfigError(
                f"model.freeze: no part {part!r} in {above}; use none, backbone, bn or one of "
                f"its parts: {known}"
            )
        names = list(children)
        frozen += [children[other] for other in names[: names.index(part)]]
        module = children[part]
    return [*frozen, module]


def inner_module(backbone: nn.Module) -> nn.Module:
    """Return the module that names of parts refer to: timm's model, not its wrapper."""
    model = getattr(backbone, "model", backbone)
    return model if isinstance(model, nn.Module) else backbone


def _names(module: nn.Module) -> str:
    return ", ".join(name for name, _ in inner_module(module).named_children()) or "none"
