"""What a plugin implements and what the engine promises it.

Symbols used in all docstrings: B labelled images a step, U = B · unlabelled_ratio unlabelled
images a step, C classes, (H, W) height and width in pixels. Images are float tensors in [0, 1],
in RGB order, *not* normalised: the classifier normalises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ssl_toolkit.config.options import Options
from ssl_toolkit.errors import ModelError

# --- algorithms ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Views:
    """How many differently augmented views of each image an algorithm wants a step."""

    labelled_weak: int = 1
    labelled_strong: int = 0
    unlabelled_weak: int = 0
    unlabelled_strong: int = 0
    unlabelled_ratio: int = 1
    """Unlabelled images for each labelled one (the papers' mu)."""

    @property
    def needs_unlabelled(self) -> bool:
        """Whether any view of unlabelled images is wanted."""
        return self.unlabelled_weak + self.unlabelled_strong > 0


@dataclass(frozen=True)
class Task:
    """What an algorithm may know about the run when it is built."""

    num_classes: int
    feature_dim: int
    """Length of the backbone's feature vector, for heads of the algorithm's own."""
    label_counts: tuple[int, ...]
    """Labelled images of each class, C numbers."""
    unlabelled_count: int
    """Size of the unlabelled pool; unlabelled indices are below it."""
    max_steps: int


@dataclass(frozen=True)
class Batch:
    """The images of one step; all tensors on the device of the run.

    View stacks have the views first: (views, B or U, 3, H, W), float in [0, 1].
    """

    labels: Tensor
    """(B,) int64."""
    labelled_indices: Tensor
    """(B,) int64, positions in the labelled set."""
    labelled_weak: Tensor
    labelled_strong: Tensor
    unlabelled_indices: Tensor
    """(U,) int64, positions in the unlabelled pool."""
    unlabelled_weak: Tensor
    unlabelled_strong: Tensor
    unlabelled_labels: Tensor | None = None
    """(U,) int64 hidden labels: only for an algorithm that declares ``oracle = True``."""


class Prediction(NamedTuple):
    """The output of one forward pass."""

    features: Tensor
    """(N, feature_dim)."""
    logits: Tensor
    """(N, C)."""


class Context(ABC):
    """What `Algorithm.step` may ask of the engine. Built by the engine, never by a plugin."""

    step: int
    """Optimizer steps already done: 0 at the first call."""
    max_steps: int
    generator: torch.Generator
    """A CPU generator that depends on (seed, step) alone: draw every random number from it."""

    @abstractmethod
    def forward(self, images: Tensor, *, update_statistics: bool = True) -> Prediction:
        """Train-mode forward of the model, with gradient.

        Args:
            images: (N, 3, H, W) in [0, 1]; a perturbation may leave the range a little.
            update_statistics: False uses the batch's own BatchNorm statistics and leaves the
                running ones alone.
        """

    def model(self, images: Tensor) -> Tensor:
        """`forward`, logits (N, C) only."""
        return self.forward(images).logits

    def features(self, images: Tensor) -> Tensor:
        """`forward`, features (N, feature_dim) only."""
        return self.forward(images).features

    @abstractmethod
    def teacher_forward(self, images: Tensor) -> Prediction:
        """Eval-mode forward of the EMA weights (the live ones under ``ema: false``); float32.

        Carries no gradient.
        """

    def teacher(self, images: Tensor) -> Tensor:
        """Probabilities (N, C) of the teacher, float32, without gradient; rows sum to 1."""
        return self.teacher_forward(images).logits.softmax(dim=-1)

    @abstractmethod
    def input_gradient(self, images: Tensor, loss: Callable[[Prediction], Tensor]) -> Tensor:
        """Gradient of a scalar with respect to the images (virtual adversarial training).

        The forward is in train mode and float32, leaves BatchNorm's running statistics alone, adds nothing
        to the gradients of the parameters and takes no part in gradient synchronisation.

        Args:
            images: (N, 3, H, W); need not require a gradient.
            loss: maps the prediction to a 0-dim tensor.

        Returns:
            (N, 3, H, W) float32, detached.
        """

    @abstractmethod
    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes of the run; the tensor itself when there is one.

        For running counts and thresholds that must agree on every process. No gradient.
        """


class Loss(NamedTuple):
    """One named term of the objective."""

    value: Tensor
    """0-dim, float32 or wider."""
    weight: float = 1.0
    """Finite and >= 0, ramp-up included; the objective is the sum of weight · value."""


@dataclass(frozen=True)
class Guess:
    """What the algorithm believes about the unlabelled images of the step, for the metrics."""

    probs: Tensor
    """(U, C) rows that sum to 1, without gradient."""
    used: Tensor
    """(U,) bool: which images take part in the loss as pseudo-labelled ones."""


@dataclass(frozen=True)
class StepOutput:
    """What `Algorithm.step` returns."""

    losses: Mapping[str, Loss]
    """At least one term, by name (lower case, no dot); the supervised one is ``supervised``."""
    guess: Guess | None = None
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """More 0-dim tensors to log, by name; no gradient, no host transfer."""


class Algorithm(nn.Module, ABC):
    """A semi-supervised objective. Subclasses are final: share code through functions.

    Buffers are saved with the run and parameters are optimised with the model, for free. The
    engine calls, in this order: ``__init__`` once, `views` once, then each step `step`; `scan`
    before the first step and every `scan_every` steps when that is not 0.

    Args:
        config: options, an instance of the class's ``Config``.
        task: facts about the run.
    """

    plugin_kind: ClassVar[str] = "algorithms"
    Config: ClassVar[type[Options]] = Options
    oracle: ClassVar[bool] = False
    """Whether the algorithm is given the hidden labels of unlabelled images (an upper bound)."""

    def __init__(self, config: Options, task: Task) -> None:
        super().__init__()
        self.config = config
        self.task = task

    @abstractmethod
    def views(self) -> Views:
        """The views wanted at every step; constant over the run."""

    @abstractmethod
    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """The losses of one batch.

        Called once a batch under the run's autocast, with the model in train mode; several times
        for one optimizer step under gradient accumulation, so that buffers changed here move with
        every batch. Must not call backward, change the batch, or transfer anything to the host.
        """

    @property
    def scan_every(self) -> int:
        """Steps between two calls of `scan`; 0 for never."""
        return 0

    def scan(
        self,
        labelled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabelled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Look at every training image without augmentation.

        Args:
            labelled: yields (indices, images, labels) in order.
            unlabelled: yields (indices, images) in order, the whole pool.
            ctx: as for `step`; gradients are off.
        """


# --- augmenters ---------------------------------------------------------------------------------

Draws = dict[str, Tensor]
"""Random parameters of an augmentation: CPU tensors whose first dimension counts the images."""


class Augmenter(nn.Module, ABC):
    """Random changes of images. Draws first, then transforms: draws can be replayed and joined.

    Args:
        config: options, an instance of the class's ``Config``; None for the defaults.
        flip: whether a mirrored image still shows its class (a property of the data set).
    """

    plugin_kind: ClassVar[str] = "augmenters"
    Config: ClassVar[type[Options]] = Options
    wants_feedback: ClassVar[bool] = False
    """Whether the engine shows it the model's answers to its own views, through `feedback`."""

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__()
        self.config = self.Config() if config is None else config
        self.flip = flip

    @abstractmethod
    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """Draw the parameters for `count` images from `generator` (a CPU generator) alone."""

    @abstractmethod
    def transform(self, images: Tensor, draws: Draws) -> Tensor:
        """Change the images (N, 3, H, W) by N rows of draws; no randomness in here.

        Returns:
            Same shape, dtype and device, in [0, 1]; the input is left alone.
        """

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw and transform.

        Args:
            images: (N, 3, H, W) float in [0, 1].
            generator: a CPU generator; None seeds one from torch's global state.

        Raises:
            TypeError: the images are not floating point.
            ValueError: the shape is not (N, 3, H, W).
        """
        if not images.is_floating_point():
            raise TypeError(f"images must be float in [0, 1], got {images.dtype}; divide by 255")
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be (N, 3, H, W), got {tuple(images.shape)}")
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ()).item()))
        count, _, height, width = images.shape
        return self.transform(images, self.draw(count, height, width, generator))

    def draw_probe(self, count: int, height: int, width: int, generator: torch.Generator) -> Draws:
        """Draw the parameters of the probe views whose answers go to `feedback`."""
        return self.draw(count, height, width, generator)

    def feedback(self, draws: Draws, probs: Tensor, labels: Tensor) -> None:
        """Learn from the model's answers to the probe views of labelled images.

        Called once a step before the views are drawn, when `wants_feedback`.

        Args:
            draws: what `draw_probe` gave.
            probs: (B, C) float32 probabilities of the live model in eval mode, no gradient.
            labels: (B,) int64.
        """


# --- backbones ----------------------------------------------------------------------------------

ChannelStatistics = tuple[float, float, float]


class Backbone(nn.Module, ABC):
    """Normalised images to feature vectors.

    A subclass sets `feature_dim` and implements `forward`; the core adds the normalisation before
    it and a linear classifier after it. The name under which it was registered reaches `build`,
    so that one class can serve a family of names.
    """

    plugin_kind: ClassVar[str] = "backbones"
    feature_dim: int
    mean: ChannelStatistics | None = None
    """Normalisation (RGB, of images in [0, 1]); None for the statistics of the data set."""
    std: ChannelStatistics | None = None
    default_image_size: int | None = None
    """Side in pixels that the backbone was made for; None for any."""

    @classmethod
    def build(cls, name: str, *, image_size: int | None = None, pretrained: bool = False) -> Self:
        """Make the backbone; this default calls the class without arguments.

        Args:
            name: the registered name.
            image_size: side of the square images in pixels, None for the backbone's own.
            pretrained: whether to load the published weights.

        Raises:
            ModelError: it has no published weights, or can't take the image size.
        """
        if pretrained:
            raise ModelError(
                f"backbone {name!r} has no published weights; leave --pretrained out, "
                "or give a file with --weights"
            )
        return cls()

    @classmethod
    def own_image_size(cls, name: str) -> int | None:
        """`default_image_size` of the backbone that `build` would make of a name."""
        return cls.default_image_size

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) normalised images to (N, feature_dim) features."""

    def classifier(self, num_classes: int) -> nn.Module | None:
        """A head of its own, (N, feature_dim) to (N, num_classes) logits; None for a linear one."""
        return None


# --- data sets ----------------------------------------------------------------------------------

Part = Literal["pool", "labelled", "unlabelled", "validation", "test"]


@dataclass(frozen=True)
class ImageTable:
    """Everything a data set holds, before a split is drawn. N pictures."""

    classes: tuple[str, ...]
    keys: tuple[str, ...]
    """A name for each picture that means the same on every machine (a relative path), unique."""
    labels: NDArray[np.int64]
    """(N,) index into `classes`; -1 where the picture carries no label."""
    parts: NDArray[np.str_]
    """(N,) each a `Part`; from ``pool`` the labelled, validation and test ones are drawn."""
    read: Callable[[NDArray[np.int64], int], NDArray[np.uint8]]
    """Pictures of these rows as (n, size, size, 3) uint8, for a size in pixels."""
    digest: Callable[[int], str] | None = None
    """Hash of the picture's bytes, for finding the same picture twice; None where unknown."""
    notes: tuple[str, ...] = ()
    """Lines the user should see, such as what was ignored."""


@dataclass(frozen=True)
class DatasetDefaults:
    """What a data set suggests where the user says nothing."""

    image_size: int = 32
    min_stride_size: int | None = None
    """Side for backbones that stride too much for `image_size`; None for the same."""
    backbone: str = "wrn_28_2"
    batch_size: int = 16
    labels_per_class: int | None = None
    """None: every picture that carries a label."""
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    flip: bool = True
    mean: ChannelStatistics | None = None
    """Channel statistics in RGB order; None: measured on the training pictures."""
    std: ChannelStatistics | None = None


class Dataset(ABC):
    """A source of labelled and unlabelled pictures, by name."""

    plugin_kind: ClassVar[str] = "datasets"
    defaults: ClassVar[DatasetDefaults] = DatasetDefaults()

    @abstractmethod
    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        """Find the pictures.

        Args:
            root: folder with the files, None for the default one.
            download: whether missing files may be fetched.

        Raises:
            DataError: the files are missing or damaged; says where they are looked for.
        """
