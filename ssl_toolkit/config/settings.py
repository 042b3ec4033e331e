"""The settings of a run, shared by all algorithms. An algorithm adds a section of its own."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from ssl_toolkit.config import default_plugins
from ssl_toolkit.config.options import Options, option

Auto = Literal["auto"]
Off = Annotated[Literal[False], BeforeValidator(lambda _: False)]
Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Momentum = Annotated[float, Field(gt=0, le=1)]
PAPER = "Hu et al., SimPLE, CVPR 2021"
SHORT = "short runs on a CPU"


def _parted(given: Any) -> Any:
    """The names in ``a,b``; anything else as it is."""
    if not isinstance(given, str):
        return given
    return [name.strip() for name in given.split(",") if name.strip()]


Names = Annotated[list[str], BeforeValidator(_parted)]
Place = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
"""A path; ``~`` is the home folder, whoever wrote it."""


class OptimizerSettings(Options):
    """How the weights are updated."""

    name: Literal["sgd", "adamw"] = option("adamw", help="update rule", source=SHORT)
    momentum: float = option(0.9, ge=0, lt=1, help="momentum of SGD", source=PAPER)
    nesterov: bool = option(True, help="Nesterov's form of momentum", source=PAPER)
    weight_decay: float = option(
        0.02,
        ge=0,
        help="decay: decoupled under AdamW, added to the gradient under SGD",
        source=f"{PAPER}, Mini-ImageNet and transfer",
    )
    weight_decay_on: Literal["all", "kernels"] = option(
        "all",
        help="decay every parameter, or only those with two or more dimensions",
        source="the authors' code; MixMatch's and FixMatch's: kernels",
    )
    backbone_lr: Rate | Auto | None = option(
        "auto",
        help="learning rate of the backbone; none: that of the classifier; auto: none from "
        "random weights, 0.001 where a pre-trained backbone is trained, with the other defaults of "
        "fine-tuning; 2e-5 there gives the paper's transfer recipe",
        source=f"{PAPER}, transfer: 2e-5 from ImageNet, 2e-4 from DomainNet-Real",
    )
    clip_norm: float | None = option(
        None,
        gt=0,
        help="largest norm of the gradient; none: no clipping",
        source="the authors' run files use 5, the paper none",
    )
    accumulation_steps: int = option(
        1,
        ge=1,
        help="batches whose gradients are averaged for one step; what compares images, such as "
        "SimPLE's pairs, and BatchNorm see one batch at a time",
        source="",
    )


class ScheduleSettings(Options):
    """The learning rate over the steps."""

    name: Literal["constant", "cosine"] = option("constant", help="shape", source=SHORT)
    cycles: float = option(
        7 / 16,
        gt=0,
        le=0.5,
        help="cosine: multiplier cos(2 pi cycles t / 2T)",
        source="FixMatch; the authors' code has 1023/2048",
    )
    warmup_steps: int = option(0, ge=0, help="steps of linear warm-up", source=PAPER)


class EMASettings(Options):
    """The averaged copy of the weights: the teacher, and what is evaluated."""

    decay: Decay | Auto = option(
        "auto",
        help="share kept at each step; auto: min(0.999, 1 - 10/steps)",
        source=f"0.999 in {PAPER}; a short run needs a shorter memory",
    )
    warmup: bool = option(
        True, help="start faster: decay at step t is at most (1 + t)/(10 + t)", source=SHORT
    )
    average_buffers: bool = option(
        False, help="average BatchNorm's statistics too (else copied)", source="the authors' code"
    )


class AugmentSettings(Options):
    """Which augmenters make the views, and their options (see ``ssl-toolkit show NAME``)."""

    weak: str = option("weak", help="augmenter of the weak views", source=PAPER)
    strong: str = option(
        "auto",
        help="augmenter of the strong views; auto: fixed for pre-trained backbones on "
        "--data, else randaugment",
        source=PAPER,
    )
    weak_options: dict[str, Any] = option({}, help="options of the weak augmenter")
    strong_options: dict[str, Any] = option({}, help="options of the strong augmenter")
    flip: bool | Auto = option("auto", help="mirror images; auto: as the data set allows")


class ModelSettings(Options):
    """Details of the network."""

    batchnorm_momentum: Momentum | Auto | None = option(
        "auto",
        help="weight of a batch in BatchNorm's running statistics; auto: the "
        "backbone's rule, clamp(100/steps, 0.001, 0.1) for our wide ResNets",
        source=f"0.001 in {PAPER}",
    )
    channels_last: bool | Auto = option(
        "auto", help="memory layout NHWC; auto: yes", source="measured, docs/performance"
    )
    freeze: str = option(
        "auto",
        min_length=1,
        help="what is not trained: none, backbone, bn (BatchNorm's weights and statistics), or "
        "the name of a part of the backbone for it and all before it; auto: backbone when "
        "pre-trained, else none",
        source="docs/results.md",
    )
    stages: Annotated[int, Field(ge=0, le=8)] | Auto = option(
        "auto",
        help="last stages of the backbone whose means are part of the features; auto: 2 where it "
        "is frozen, else 0",
        source="docs/results.md",
    )
    head_init: Literal["auto", "random", "zero", "probe"] = option(
        "auto",
        help="first weights of the head; probe: those of a logistic regression on the labeled "
        "features; auto: probe when pre-trained, else random",
        source="docs/results.md",
    )
    probe: bool | Auto = option(
        "auto",
        help="fit a linear probe to the features before training and say at the end whether "
        "training went beyond it; auto: when pre-trained",
    )
    feature_views: int = option(
        8,
        ge=0,
        le=1000,
        help="augmented views of each image from which the steps of a frozen backbone draw, whose "
        "features are computed once; 0: augment and compute at every step",
        source="docs/results.md",
    )
    sync_batchnorm: bool = option(
        False,
        help="normalize by the whole batch where several GPUs share it (else each by its part)",
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


Fit = Literal["crop", "pad"]
"""How an image that isn't square becomes so."""


class Settings(Options):
    """Everything of a run but the algorithm's own section.

    A value of None (``null``) means: by data set, backbone and length of the run; the resolved
    configuration in the run's folder holds what it became.
    """

    algo: str = option(default_plugins.ALGORITHM, min_length=1, help="algorithm")
    profile: Literal["paper", "reference"] = option(
        "paper", help="paper: its formulas; reference: what its authors' code does"
    )
    backbone: str | None = option(None, min_length=1, help="registered name or timm's")
    pretrained: bool = option(False, help="start from published weights")
    weights: Place | None = option(None, help="file with weights to start from")

    dataset: str | None = option(None, min_length=1, help="registered data set")
    data: Place | None = option(None, help="folder with images")
    root: Place | None = option(None, help="folder with the files of the data set")
    download: bool = option(False, help="fetch missing files of the data set")
    labels_per_class: int | None = option(None, ge=1, help="labeled images of each class")
    num_labels: int | None = option(None, ge=1, help="labeled images in all, stratified")
    labels: Place | None = option(None, help="file that says which are labeled")
    split: Place | None = option(None, help="split.json to use as it is")
    val_fraction: float | None = option(None, ge=0, lt=1, help="share for validation")
    test_fraction: float | None = option(None, ge=0, lt=1, help="share for the test")
    labeled_in_pool: bool | None = option(
        None, help="keep labeled images in the unlabeled pool as well"
    )
    on_bad_image: Literal["error", "skip"] = option("error", help="what an unreadable image does")
    stream_buffer: int | None = option(
        None,
        ge=1,
        help="decode unlabeled images while training goes, shuffled within so many; "
        "none: decode all before",
    )
    drop_leaks: bool = option(
        False, help="drop training images that are byte-identical to test or validation ones"
    )
    classes: list[str] | None = option(None, min_length=2, help="names of the classes, in order")
    sampler: Literal["uniform", "balanced"] = option(
        "uniform", help="how labeled images are drawn: alike, or classes in equal shares"
    )
    image_size: int | None = option(None, ge=1, le=4096, help="side in pixels")
    fit: Fit = option(
        "crop",
        help="how an image becomes square: crop cuts the middle out, pad keeps all of it, on white",
    )

    steps: int | None = option(None, ge=1, help="optimizer steps")
    batch_size: int | None = option(None, ge=1, help="labeled images in a batch")
    eval_batch_size: int | None = option(None, ge=1, help="images in a batch of evaluation")
    lr: float | None = option(None, gt=0, help="learning rate")
    eval_every: int | None = option(None, ge=1, help="steps between evaluations")
    log_every: int | None = option(None, ge=1, help="steps between rows of metrics")
    save_every: int | None = option(None, ge=1, help="steps between checkpoints")
    keep_checkpoints: int = option(
        2, ge=1, le=100, help="number of most recent checkpoints to keep: last.pt, last-1.pt, …"
    )
    time_limit: float | None = option(None, gt=0, help="minutes after which to save and stop")
    minutes: float | None = option(
        None,
        gt=0,
        help="make the best of so many minutes: image size, feature views and steps fitted to what "
        "is measured on this device; none: as the other keys say",
    )
    on_collapse: Literal["stop", "warn"] = option(
        "warn", help="what to do when training collapses: save and stop, or only warn"
    )
    seed: int = option(0, ge=0, lt=2**63, help="seed of everything random")
    device: str = option("auto", min_length=1, help="auto, cpu, cuda, cuda:N or mps")
    devices: int = option(1, ge=1, le=4096, help="processes that share each batch, one a GPU")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = option(
        "auto", help="arithmetic of the forward; auto: bf16 on GPUs that have it, fp32 elsewhere"
    )
    compile: bool = option(
        False, help="compile the forwards of a step, which takes minutes and pays in long runs"
    )
    workers: int = option(0, ge=0, le=256, help="threads that read images")
    output: Place | None = option(None, help="folder of the run")
    loggers: Names = option([], help="where the metrics are sent, beside the files of the run")
    group: str | None = option(
        None, min_length=1, help="comparison that the run belongs to, for the loggers"
    )

    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    ema: EMAOrOff = option(EMASettings(), help="averaged weights; false for none")
    augment: AugmentSettings = AugmentSettings()
    model: ModelSettings = ModelSettings()


class ResolvedSettings(Settings):
    """Settings whose open values are filled by data set, backbone and length of the run."""

    backbone: str
    image_size: int
    val_fraction: float
    test_fraction: float
    steps: int
    batch_size: int
    eval_batch_size: int
    lr: float
    eval_every: int
    log_every: int
    save_every: int


SHARED_REFERENCE: dict[str, Any] = {
    "optimizer": {"clip_norm": 5.0, "weight_decay_on": "all"},
    "schedule": {"cycles": 1023 / 2048},
    "ema": {"average_buffers": False},
    "model": {"freeze": "none", "head_init": "random"},
}
"""What ``--profile reference`` sets outside the algorithm's and the augmenters' own sections."""

HEAD_TRAINING: dict[str, Any] = {
    "steps": 300,
    "schedule": {"name": "cosine", "cycles": 0.5},
}
"""What is set where the head alone is trained, on a frozen backbone or on given features
(docs/results.md): it starts at the probe, and more steps lead away from it. The same for every
algorithm; one that needs other options has them in ``Config.for_pretrained``."""

FINE_TUNING_RATE = 0.001
FINE_TUNING: dict[str, Any] = {
    "steps": 300,
    "batch_size": 32,
    "lr": 5e-3,
    "eval_every": 100,
    "optimizer": {"clip_norm": 5.0},
    "schedule": {"name": "cosine", "cycles": 0.5, "warmup_steps": 10},
    "augment": {"flip": False},
    "model": {"head_init": "zero"},
}
"""What is set where a pre-trained backbone is trained, beside `FINE_TUNING_RATE` for the backbone,
unless ``optimizer.backbone_lr`` is given: with 2e-5 there it is the paper's transfer recipe. Images
are not mirrored: where frozen features fail, it is often for signs whose mirror image is another
one (7 points on letters, docs/results.md)."""

OTHER_NAMES = {
    "learning_rate": "lr",
    "epochs": "steps",
    "iterations": "steps",
    "max_steps": "steps",
    "num_train_iter": "steps",
    "num_eval_iter": "eval_every",
    "num_log_iter": "log_every",
    "arch": "backbone",
    "net": "backbone",
    "model_name": "backbone",
    "algorithm_name": "algo",
    "alg": "algo",
    "batchsize": "batch_size",
    "bs": "batch_size",
    "num_workers": "workers",
    "gpu": "device",
    "save_dir": "output",
    "output_dir": "output",
    "data_dir": "data",
    "data_path": "data",
    "n_labeled": "num_labels",
    "num_labeled": "num_labels",
    "num_labelled": "num_labels",
    "img_size": "image_size",
    "threshold": "confidence_threshold",
    "p_cutoff": "confidence_threshold",
    "tau": "confidence_threshold",
    "uratio": "unlabeled_ratio",
    "mu": "unlabeled_ratio",
    "ulb_loss_ratio": "unsupervised_weight",
    "lambda_u": "unsupervised_weight",
    "lambda_p": "pair_weight",
    "ema_m": "ema.decay",
    "ema_decay": "ema.decay",
    "weight_decay": "optimizer.weight_decay",
    "wd": "optimizer.weight_decay",
    "momentum": "optimizer.momentum",
    "nesterov": "optimizer.nesterov",
    "clip_grad": "optimizer.clip_norm",
    "max_grad_norm": "optimizer.clip_norm",
    "warmup": "schedule.warmup_steps",
    "amp": "precision",
}
"""What other tools call our keys."""
