"""Settings that depend on whether training starts from pre-trained weights."""

from __future__ import annotations

from typing import Any

from ssl_toolkit.config.defaults import AUTO, FINE_TUNING, FINE_TUNING_RATE, HEAD_TRAINING
from ssl_toolkit.config.faults import M
from ssl_toolkit.config.merging import Tree
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.files import holds_features


def pretrained_defaults(settings: Settings) -> Tree:
    """Return the defaults for training from pre-trained weights.

    The same for every algorithm, so that the rows of a comparison share it. Nothing under another
    profile than ``paper`` or a ``backbone_lr`` of the user's, which keep the papers' recipe, and
    for ``auto``, whose candidates each take their own.
    """
    if settings.profile != "paper" or settings.algo == AUTO:
        return {}
    trains_adapters = settings.lora.rank and settings.model.freeze == "auto"
    if settings.model.freeze in ("auto", "backbone") and not trains_adapters:
        return HEAD_TRAINING if settings.pretrained or holds_features(settings.data) else {}
    fine_tunes = settings.pretrained and settings.optimizer.backbone_lr == "auto"
    return FINE_TUNING if fine_tunes else {}


def with_transfer_recipe(settings: Settings, *, trained: bool) -> Settings:
    """Fill what is ``auto`` by whether the backbone is pre-trained, or the data its features.

    Args:
        settings: validated.
        trained: whether the backbone is, by the defaults of fine-tuning.
    """
    augment, optimizer = settings.augment, settings.optimizer
    frozen = settings.pretrained or holds_features(settings.data)
    strong = "fixed" if settings.pretrained and settings.data else "randaugment"
    settings = settings.model_copy(update={"augment": _replace_auto(augment, strong=strong)})
    if settings.algo == AUTO:  # each candidate fills the rest in its own way
        return settings
    backbone_lr = FINE_TUNING_RATE if trained else 2e-5 if settings.pretrained else None
    freeze = "backbone" if frozen and not settings.lora.rank else "none"
    one_class = settings.task == "multiclass"  # as the probe needs
    model = _replace_auto(settings.model, freeze=freeze, probe=frozen and one_class)
    head = ("probe" if one_class else "zero") if frozen and model.freeze != "none" else "random"
    stages = "auto" if model.freeze == "backbone" else 0  # the backbone is not built here
    update = {
        "optimizer": _replace_auto(optimizer, backbone_lr=backbone_lr),
        "model": _replace_auto(model, stages=stages, head_init=head),
    }
    return settings.model_copy(update=update)


def _replace_auto(section: M, **values: Any) -> M:
    """Return a section with values for those of these options that are ``auto``."""
    automatic = {name: v for name, v in values.items() if getattr(section, name) == "auto"}
    return section.model_copy(update=automatic)
