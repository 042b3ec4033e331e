"""The sections of the settings: optimizer, schedule, averaged weights, augmentation, network."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ssl_toolkit.config.options import Arguments, Names, Options, option, setting

Auto = Literal["auto"]
Off = Annotated[Literal[False], BeforeValidator(lambda _: False)]
Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Momentum = Annotated[float, Field(gt=0, le=1)]
PAPER = "Hu et al., SimPLE, CVPR 2021"
SHORT = "short runs on a CPU"


class OptimizerSettings(Options):
    """How the weights are updated."""

    name: str = option(
        "adamw",
        min_length=1,
        help="update rule: adamw, sgd, or another optimizer of timm by name, such as lamb",
        source=SHORT,
    )
    args: Arguments = option(
        {}, help="further arguments of the optimizer, such as betas", source="timm.optim"
    )
    momentum: float = option(
        0.9, ge=0, lt=1, help="momentum of SGD and of timm's optimizers that have one", source=PAPER
    )
    nesterov: bool = option(True, help="Nesterov's form of momentum", source=PAPER)
    weight_decay: float = option(
        0.02,
        ge=0,
        help="weight decay: decoupled with AdamW, added to the gradient with SGD, as defined by "
        "the others",
        source=f"{PAPER}, Mini-ImageNet and transfer",
    )
    weight_decay_on: Literal["all", "kernels", "timm"] = option(
        "all",
        help="parameters to decay: all; kernels, those with two or more dimensions; timm, kernels "
        "without those that the model excludes, such as position embeddings",
        source="the authors' code; MixMatch's and FixMatch's: kernels",
    )
    backbone_lr: Rate | Auto | None = option(
        "auto",
        help="learning rate of the backbone; none: that of the classifier; auto: 0.001 when "
        "fine-tuning a pre-trained backbone (with other defaults of fine-tuning), else none; the "
        "paper's transfer recipe uses 2e-5",
        source=f"{PAPER}, transfer: 2e-5 from ImageNet, 2e-4 from DomainNet-Real",
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = option(
        None,
        help="factor on the learning rate from each layer to the one below it, by timm's groups of "
        "layers; none: 1",
        source="BEiT: 0.65 to 0.75 for small to base transformers",
    )
    clip_norm: float | None = option(
        None,
        gt=0,
        help="maximum norm of the gradient; none: no clipping",
        source="the authors' run files use 5, the paper none",
    )
    accumulation_steps: int = option(
        1,
        ge=1,
        help="number of batches whose gradients are averaged for one step; BatchNorm and losses "
        "that compare images, such as SimPLE's pairs, see one batch at a time",
        source="",
    )


class ScheduleSettings(Options):
    """The learning rate over the steps."""

    name: Literal["constant", "cosine"] = option(
        "constant", help="shape of the schedule", source=SHORT
    )
    cycles: float = option(
        7 / 16,
        gt=0,
        le=0.5,
        help="cosine: multiplier cos(2 pi cycles t / 2T)",
        source="FixMatch; the authors' code has 1023/2048",
    )
    warmup_steps: int = option(0, ge=0, help="steps of linear warm-up", source=PAPER, in_steps=True)


class EMASettings(Options):
    """Averaged copy of the weights: the teacher, and the model to evaluate."""

    decay: Decay | Auto = setting(
        "auto",
        follows_steps=True,
        help="decay per step; auto: min(0.999, 1 - 10/steps)",
        source=f"0.999 in {PAPER}; a short run needs a shorter memory",
    )
    warmup: bool = option(True, help="limit the decay at step t to (1 + t)/(10 + t)", source=SHORT)
    average_buffers: bool = option(
        False,
        help="average BatchNorm's statistics instead of copying them",
        source="the authors' code",
    )


class AugmentSettings(Options):
    """Augmenters of the views, and their options (see ``ssl-toolkit show NAME``)."""

    weak: str = option("weak", help="augmenter of the weak views", source=PAPER)
    strong: str = option(
        "auto",
        help="augmenter of the strong views; auto: fixed for pre-trained backbones on "
        "--data, else randaugment",
        source=PAPER,
    )
    weak_options: dict[str, Any] = option({}, help="options of the weak augmenter")
    strong_options: dict[str, Any] = option({}, help="options of the strong augmenter")
    flip: bool | Auto = option(
        "auto", help="flip images horizontally at random; auto: if the data set allows it"
    )


class ModelSettings(Options):
    """Details of the network."""

    args: Arguments = setting(
        {},
        help="arguments of a timm model, such as drop_path_rate, img_size, patch_size, global_pool",
        source="timm.create_model",
        affects=("weights",),
    )
    batchnorm_momentum: Momentum | Auto | None = setting(
        "auto",
        follows_steps=True,
        help="weight of a batch in BatchNorm's running statistics; auto: by backbone, "
        "clamp(100/steps, 0.001, 0.1) for the built-in wide ResNets; 0.001 with any "
        "profile but paper",
        source=f"0.001 in {PAPER}",
    )
    channels_last: bool | Auto = option(
        "auto",
        help="use the memory layout NHWC; auto: true",
        source="measured, docs/results/performance.md",
    )
    freeze: str = option(
        "auto",
        min_length=1,
        help="part of the network to freeze: none, backbone, bn (BatchNorm's weights and "
        "statistics), or the name of a part of the backbone, to freeze it and all before it; auto: "
        "backbone when pre-trained, else none",
        source="docs/results/pretrained.md",
    )
    stages: Annotated[int, Field(ge=0, le=8)] | Auto = option(
        "auto",
        help="number of last stages of the backbone whose mean activations are appended to the "
        "features; auto: 2 when it is frozen and has its own normalization, else 0",
        source="docs/results/pretrained.md",
    )
    head_init: Literal["auto", "random", "zero", "probe"] = option(
        "auto",
        help="initial weights of the head; probe: those of a logistic regression on the labeled "
        "features; auto: probe with a frozen backbone, zero when fine-tuning, else random",
        source="docs/results/pretrained.md",
    )
    probe: bool | Auto = option(
        "auto",
        help="fit a linear probe to the features before training, and report whether training "
        "improves on it; auto: when pre-trained",
    )
    feature_views: int = option(
        8,
        ge=0,
        le=1000,
        help="number of augmented views per image that training on a frozen backbone samples from; "
        "their features are computed once; 0: augment and compute at every step",
        source="docs/results/pretrained.md",
    )
    sync_batchnorm: bool = option(
        False,
        help="normalize by the whole batch across GPUs, not by the part of each GPU",
    )


def _ratio(value: Any) -> Any:
    """Return the number that a text like ``1/50`` stands for; anything else unchanged."""
    numerator, slash, denominator = str(value).partition("/")
    with contextlib.suppress(ValueError, ZeroDivisionError):
        return float(numerator) / float(denominator) if slash else value
    return value


Ratio = Annotated[float, BeforeValidator(_ratio)]


class ImbalanceSettings(Options):
    """A long tail of labeled and unlabeled images that is drawn from an even set.

    The number of images decreases exponentially from the first class to the last.
    """

    shorthand: ClassVar[tuple[str, ...]] = ("labels", "pool")
    """Fields that a scalar in place of the section sets."""

    labels: Ratio | None = setting(
        None,
        gt=0,
        metavar="G",
        help="ratio of the labels of the first class to those of the last; below 1, such as 1/50, "
        "the last class is the largest",
        affects=("split",),
    )
    pool: Ratio | None = setting(
        None,
        gt=0,
        metavar="G",
        help="ratio of the unlabeled images of the first class to those of the last; below 1, such "
        "as 1/50, the last class is the largest",
        affects=("split",),
    )


class StrangerSettings(Options):
    """Images of no class that are mixed into the pool, for experiments."""

    shorthand: ClassVar[tuple[str, ...]] = ("data",)
    """Fields that a scalar in place of the section sets."""

    data: str | None = setting(
        None,
        min_length=1,
        metavar="DATA",
        help="the same as --strangers: name of a data set, or path to images of no class",
        affects=("strangers", "split"),
    )
    fraction: float = setting(
        0.5,
        gt=0,
        lt=1,
        metavar="F",
        help="share of the unlabeled images that are strangers: they are added to the others",
        affects=("split",),
    )


class LoraSettings(Options):
    """Low-rank adapters (LoRA, by peft) that are trained in place of the backbone."""

    rank: int = setting(
        0, ge=0, le=1024, help="rank of the adapters; 0: no adapters", affects=("weights",)
    )
    alpha: float = option(
        16.0,
        gt=0,
        help="scale of the adapters: their output is multiplied by alpha / rank",
        source="Hu et al., LoRA, ICLR 2022",
    )
    dropout: float = option(0.0, ge=0, lt=1, help="dropout on the input of the adapters")
    targets: Names = setting(
        [],
        help="names of the layers to adapt, such as qkv; by default those of attention that map to "
        "queries, keys and values, or without attention all linear layers and convolutions",
        affects=("weights",),
    )


def _defaults_if_on(value: Any) -> Any:
    return {} if str(value).lower() in ("true", "on", "yes") else value


def _on_or_off(value: Any) -> str:
    return "off" if str(value).lower() in ("false", "off", "no") else "on"


EMAOrOff = Annotated[
    Annotated[EMASettings, BeforeValidator(_defaults_if_on), Tag("on")]
    | Annotated[Off, Tag("off")],
    Discriminator(_on_or_off),
]
