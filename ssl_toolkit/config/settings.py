"""The settings of a run, shared by all algorithms. An algorithm adds a section of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ssl_toolkit.config import defaults
from ssl_toolkit.config.images import RGB8, Fit, ImageSize, PixelFormat
from ssl_toolkit.config.options import (
    Declaration,
    Names,
    Options,
    declaration_of,
    fields_of,
    plain,
    setting,
)
from ssl_toolkit.config.plugin_names import parts_of
from ssl_toolkit.config.sections import (
    AugmentSettings,
    EMAOrOff,
    EMASettings,
    ImbalanceSettings,
    LoraSettings,
    ModelSettings,
    OptimizerSettings,
    ScheduleSettings,
    StrangerSettings,
)

Place = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
"""A path; ``~`` is expanded to the home folder, also in files."""


RecipeOrNone = Annotated[
    Annotated[str, Field(min_length=1)] | None,
    BeforeValidator(lambda value: None if value == "none" else value),
]

Bits = Annotated[Literal[8, 16], BeforeValidator(plain)]
"""Bits of a channel."""

OnBadImage = Literal["error", "skip"]
"""How unreadable images are handled: refused, each with an error, or left out."""

Profile = Literal["paper", "reference", "original"]
"""Whose formulas and settings are used: ``paper``, or a key of `Algorithm.profiles`."""


class Settings(Options):
    """Everything of a run but the algorithm's own section.

    None (``null``) leaves a value to the data set, the backbone and the number of steps; the
    resolved configuration in the run's folder has the value.
    """

    # A declaration is a row of a table.
    # fmt: off
    algo: str = setting(
        defaults.ALGORITHM, help="algorithm; auto chooses one by cross-validation",
        min_length=1, metavar="NAME", compared=False,
    )
    profile: Profile = setting(
        "paper", help="formulas and settings of the papers, of the released code (reference), or "
        "of an earlier released code (original), where the algorithm states them", flag=True,
    )
    recipe: RecipeOrNone = setting(
        None, help="row of a published table whose settings to use", metavar="ROW",
    )
    scale: float = setting(
        1.0, help="factor for the steps of a recipe and for all settings in steps", gt=0, le=1,
        metavar="F",
    )
    backbone: str | None = setting(
        None, help="registered backbone, timm model, hf-hub:ORG/NAME or local-dir:PATH",
        min_length=1, metavar="NAME", default_text="by data set", affects=("weights",),
    )
    pretrained: bool = setting(
        False, help="start from published weights", flag=True, affects=("weights",),
    )
    weights: Place | None = setting(
        None, help="path to the initial weights: safetensors, or a .pt file of plain tensors",
        metavar="FILE", affects=("weights",),
    )

    dataset: str | None = setting(
        None, help="name of a data set", min_length=1, metavar="NAME",
        when_open=defaults.DATASET, affects=("data",),
    )
    data: Place | None = setting(
        None,
        help="path to your own images: labeled/<class>/, unlabeled/, test/<class>/, or a manifest",
        metavar="PATH", affects=("data",), resume="moved",
        resume_help="path to the images, if they were moved",
    )
    task: Literal["multiclass", "multilabel"] = setting(
        "multiclass", help="one class per image, or any number of classes (in a manifest, joined "
        "by | or a JSON list)", flag=True, affects=("data",),
    )
    root: Place | None = setting(
        None, help="path to the files of a named data set, or the base of a manifest's paths",
        metavar="DIR", compared=False, resume="free",
    )
    download: bool = setting(
        False, help="download missing files of the data set", flag=True, compared=False,
        resume="free",
    )
    labels_per_class: int | None = setting(
        None, help="number of labeled images per class", ge=1, metavar="N",
        default_text="by data set", affects=("split",),
    )
    num_labels: int | None = setting(
        None, help="number of labeled images in total, stratified by class", ge=1, metavar="N",
        affects=("split",),
    )
    labels: Place | None = setting(
        None, help="path to a list of the labeled images: a path per line, or .csv with path,label",
        metavar="FILE", affects=("table", "split"),
    )
    pseudo_labels: Place | None = setting(
        None, help="path to a .csv with path,label: images of the pool to train on as labeled ones",
        metavar="FILE", affects=("table", "split"),
    )
    split: Place | None = setting(
        None, help="path to a split.json to use unchanged", metavar="FILE", compared=False,
    )
    val_fraction: float | None = setting(
        None, help="fraction of each class to use for validation", ge=0, lt=1, metavar="F",
        default_text="by data set", affects=("split",),
    )
    test_fraction: float | None = setting(
        None, help="fraction of each class to use for testing", ge=0, lt=1, metavar="F",
        default_text="by data set", affects=("split",),
    )
    labeled_in_pool: bool | None = setting(
        None, help="include the labeled images in the unlabeled pool", flag=True,
        default_text="only those also in unlabeled/", affects=("split",),
    )
    imbalance: ImbalanceSettings = setting(
        ImbalanceSettings(), metavar="G", affects=("split",),
        help="draw a long tail of labels and pool: ratio of the first class to the last; below 1, "
        "such as 1/50, the last class is the largest", default_text="as the data is",
    )
    prior: dict[str, float] | Place | None = setting(
        None, help="class shares of the pool: path to a .json or .csv file of class and share",
        metavar="FILE", default_text="those of the labels, or estimated",
    )
    strangers: StrangerSettings = setting(
        StrangerSettings(), metavar="DATA", affects=("split",),
        help="mix images of no class into the unlabeled ones: name of a data set or path to images",
    )
    drop_strangers: Literal["no", "hard", "soft"] = setting(
        "no", help="leave images that seem to belong to no class out of the unlabeled batches, or "
        "draw them less often (soft)", flag=True,
    )
    on_bad_image: OnBadImage = setting(
        "error", help="how to handle unreadable images", flag=True, affects=("table", "split"),
    )
    stream_buffer: int | None = setting(
        None, help="decode unlabeled images during training, shuffled within a buffer of N", ge=1,
        metavar="N", default_text="decode all before training", affects=("table", "split"),
    )
    drop_leaks: bool = setting(
        False,
        help="drop training images that are also test or validation images, or have two labels",
        flag=True, affects=("split",),
    )
    classes: list[str] | None = setting(
        None, help="names of the classes, in order", min_length=2, affects=("data",),
    )
    sampler: Literal["uniform", "balanced"] = setting(
        "uniform", help="sampling of labeled images: uniform over images, or over classes",
        affects=("draws",),
    )
    image_size: ImageSize | None = setting(
        None, help="side length of the images in pixels, or height and width as 48x64",
        metavar="N|HxW",
        default_text="by data set and backbone", affects=("weights", "draws"),
    )
    channels: int | None = setting(
        None, help="number of channels of the images: 3 for RGB, 1 for gray, 2 and 4 with alpha",
        ge=1, le=1024, metavar="N", default_text="3, or those of arrays or the data set",
        affects=("data", "weights"),
    )
    bits: Bits | None = setting(
        None, help="bits of a channel to keep", metavar="8|16",
        default_text="8, or those of arrays or the data set", affects=("data", "weights"),
    )
    fit: Fit = setting(
        "crop", help="how images get the shape of the image size, square by default: crop the "
        "center, or pad with white", flag=True,
        affects=("weights",),
    )

    steps: int | None = setting(
        None, help="number of optimizer steps", ge=1, metavar="N", when_open=1000,
        follows_steps=True, in_steps=True, resume="recorded",
        resume_help="total number of steps, to train longer than before",
    )
    batch_size: int | None = setting(
        None, help="number of labeled images per batch", ge=1, metavar="N",
        default_text="by data set", affects=("draws",),
    )
    eval_batch_size: int | None = setting(
        None, help="number of images per batch in evaluation", ge=1, metavar="N",
        default_text="256 up to 64 px, else 64",
    )
    lr: float | None = setting(None, help="learning rate", gt=0, metavar="X", when_open=0.002)
    eval_every: int | None = setting(
        None, help="number of steps between evaluations", ge=1, metavar="N",
        default_text="steps / 20", follows_steps=True, in_steps=True,
    )
    log_every: int | None = setting(
        None, help="number of steps between rows of metrics", ge=1, metavar="N",
        default_text="10, or --eval-every if that is less", compared=False, in_steps=True,
    )
    save_every: int | None = setting(
        None, help="number of steps between checkpoints", ge=1, metavar="N",
        default_text="--eval-every", compared=False, in_steps=True,
    )
    keep_checkpoints: int = setting(
        2, help="number of most recent checkpoints to keep", ge=1, le=100, metavar="N",
        compared=False,
    )
    time_limit: float | None = setting(
        None, help="minutes after which to save, test the best weights, and stop", gt=0,
        metavar="MIN", compared=False, resume="free",
        resume_help="minutes after which to save and stop this time",
    )
    minutes: float | None = setting(
        None, help="fit image size, feature views and steps to M minutes, measured on this device",
        gt=0, metavar="M", compared=False,
    )
    on_collapse: Literal["stop", "warn"] = setting(
        "warn", help="when training collapses: save and stop, or warn and continue", flag=True,
        compared=False, resume="free",
    )
    seed: int = setting(0, help="random seed", ge=0, lt=2**63, metavar="N", compared=False)
    device: str = setting(
        "auto", help="device: auto, cpu, cuda, cuda:N or mps", min_length=1, metavar="NAME",
    )
    devices: int = setting(
        1, help="number of processes that share each batch, one per GPU", ge=1, le=4096,
        metavar="N", resume="recorded",
        resume_help="number of processes that share each batch from now on",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", help="precision of the forward pass; auto: bf16 on GPUs that support it, else fp32",
        flag=True,
    )
    compile: bool = setting(
        False, help="compile the forward passes; the first step then takes minutes", flag=True,
    )
    workers: int = setting(
        0, help="number of threads that read images", ge=0, le=256, metavar="N",
        default_text="0, the main thread", compared=False, resume="free",
    )
    output: Place | None = setting(
        None, help="path to the run's folder", metavar="DIR",
        default_text="runs/<algo>-<dataset>-s<seed>", compared=False, resume="free",
    )
    loggers: Names = setting(
        [], help="loggers to send metrics to: tensorboard, wandb, mlflow or a plugin's",
        metavar="A,B", compared=False, resume="free",
    )
    group: str | None = setting(
        None, help="comparison that the run belongs to, for the loggers", min_length=1,
        compared=False, resume="free",
    )

    optimizer: OptimizerSettings = setting(OptimizerSettings(), help="how the weights are updated")
    schedule: ScheduleSettings = setting(ScheduleSettings(), help="learning-rate schedule")
    ema: EMAOrOff = setting(EMASettings(), help="averaged weights; false for none")
    augment: AugmentSettings = setting(
        AugmentSettings(), help="augmenters of the views", affects=("draws",),
    )
    model: ModelSettings = setting(ModelSettings(), help="details of the network")
    lora: LoraSettings = setting(
        LoraSettings(), help="low-rank adapters that are trained in place of the backbone",
    )
    # fmt: on

    @property
    def pixels(self) -> PixelFormat:
        """Channels and bits of the images; RGB with 8 bits where the settings leave them open."""
        return PixelFormat(self.channels or RGB8.channels, self.bits or RGB8.bits)

    @property
    def plugins(self) -> tuple[tuple[str, str], ...]:
        """The group and the name of each plugin that is set; timm's backbones included."""
        augment = self.augment
        names = {
            "augmenters": (augment.weak, augment.strong),
            "backbones": (self.backbone,),
            "datasets": (self.dataset,),
            "loggers": tuple(self.loggers),
        }
        others = [(group, name) for group, of in names.items() for name in of if name]
        return (*parts_of("algorithms", self.algo), *others)


class ResolvedSettings(Settings):
    """Settings whose open values are filled by data set, backbone and length of the run."""

    backbone: str
    image_size: ImageSize
    val_fraction: float
    test_fraction: float
    steps: int
    batch_size: int
    eval_batch_size: int
    lr: float
    eval_every: int
    log_every: int
    save_every: int


Consequence = Literal[
    "classes", "data", "strangers", "weights file", "split", "initial weights", "draws"
]

_CAUSES = {
    "classes": {"data"},
    "data": {"data", "table"},
    "strangers": {"data", "table", "strangers"},
    "weights file": {"weights"},
    "split": {"data", "split"},
    # With the split, because the weights contain the channel statistics of its images.
    "initial weights": {"data", "split", "weights"},
    "draws": {"data", "split", "draws"},
}


def _keys(holds: Callable[[Declaration], bool]) -> tuple[str, ...]:
    return tuple(key for key, field in fields_of(Settings) if holds(declaration_of(field)))


OPEN_VALUES: dict[str, Any] = {
    key: _value
    for key, field in fields_of(Settings)
    if (_value := declaration_of(field).when_open) is not None
}
"""Values of settings that are left open, where they are the same for all runs."""

NOT_COMPARED = frozenset(_keys(lambda d: not d.compared))
"""Settings in which the rows of a comparison may differ."""

FOLLOW_STEPS = _keys(lambda d: d.follows_steps)
"""Settings that differ between rows where a budget chooses the steps of each row."""

FREE_ON_RESUME = frozenset(_keys(lambda d: d.resume == "free"))
"""Settings that may be changed in a run's folder: no result depends on them."""

MOVED_ON_RESUME = frozenset(_keys(lambda d: d.resume == "moved"))
"""Settings that may be changed if the content that they name is the same."""

RECORDED_ON_RESUME = frozenset(_keys(lambda d: d.resume == "recorded"))
"""Settings that flags of `resume` change; record.json notes it."""


def keys_behind(consequence: Consequence) -> tuple[str, ...]:
    """Return the settings that something follows from, by their dotted keys."""
    return _keys(lambda d: not _CAUSES[consequence].isdisjoint(d.affects))


def shared_keys(tree: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the settings that rows must share, by dotted key: all but `NOT_COMPARED` and options.

    Args:
        tree: a configuration in plain types.
        section: the key of the algorithm's options.
    """
    left_out = {*NOT_COMPARED, section}
    return dict(flatten({key: value for key, value in tree.items() if key not in left_out}))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the dotted keys and values of a tree; an empty mapping has none."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
