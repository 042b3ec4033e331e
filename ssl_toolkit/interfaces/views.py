"""Views of images: what an algorithm requests, and the batches that contain them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Source = Literal["labeled", "unlabeled"]


@dataclass(frozen=True)
class View:
    """A kind of view: of which images, by which augmenter, how many and how large."""

    source: Source
    augmenter: str
    """``weak`` or ``strong`` for the augmenters of the run, ``plain`` for the unchanged images, or
    a name in `Algorithm.augmenters`."""
    count: int = 1
    """Number of views per image, at least 1."""
    size: int | None = None
    """Side in pixels, of images that are not square the shorter side; None for the size of the run.
    Views are augmented at the size of the run and then resized, bilinear with antialiasing."""


@dataclass(frozen=True)
class Views:
    """Number of augmented views per image in a batch.

    `Views()` requests one weak view of the labeled images. The four counts request the usual kinds
    of views; `extra` declares any others.
    """

    labeled_weak: int = 1
    labeled_strong: int = 0
    unlabeled_weak: int = 0
    unlabeled_strong: int = 0
    unlabeled_ratio: int = 1
    """Unlabeled images per labeled one (mu in the papers).

    The ratio changes neither the labeled images of a batch, nor the order of the unlabeled ones,
    nor the augmentation parameters of the first rows of a view.
    """
    extra: Mapping[str, View] = field(default_factory=dict)
    """Further views, by their names in `Batch.extra` (lower-case letters, digits, underscores).
    Their random parameters depend on the seed, the step and the name, so that algorithms that
    declare the same view share them."""

    @property
    def kinds(self) -> dict[str, View]:
        """All kinds of views by name, those of the four counts included."""
        return {
            "labeled_weak": View("labeled", "weak", self.labeled_weak),
            "labeled_strong": View("labeled", "strong", self.labeled_strong),
            "unlabeled_weak": View("unlabeled", "weak", self.unlabeled_weak),
            "unlabeled_strong": View("unlabeled", "strong", self.unlabeled_strong),
            **self.extra,
        }

    @property
    def needs_unlabeled(self) -> bool:
        """True if any view of unlabeled images is requested."""
        return any(view.source == "unlabeled" and view.count for view in self.kinds.values())

    def uses(self, augmenter: str) -> bool:
        """Return True if any view by the augmenter of this name is requested."""
        return any(view.augmenter == augmenter and view.count for view in self.kinds.values())

    @property
    def per_labeled_image(self) -> int:
        """Number of all views in a batch, divided by its number of labeled images."""
        ratios = {"labeled": 1, "unlabeled": self.unlabeled_ratio}
        return sum(view.count * ratios[view.source] for view in self.kinds.values())


@dataclass(frozen=True)
class Batch:
    """Views of B labeled and U unlabeled images, on the device of the run.

    Views are float tensors (views, B or U, C, H, W) in [0, 1]; C is `TaskInfo.channels`, 3 for RGB.
    """

    labels: Tensor
    """(B,) int64; (B, C) float32 in {0, 1} under ``multilabel`` (`TaskInfo.kind`)."""
    labeled_indices: Tensor
    """(B,) int64, positions in the labeled set."""
    labeled_weak: Tensor
    labeled_strong: Tensor
    unlabeled_indices: Tensor
    """(U,) int64, positions in the unlabeled pool."""
    unlabeled_weak: Tensor
    unlabeled_strong: Tensor
    unlabeled_labels: Tensor | None = None
    """(U,) int64 hidden labels, only for algorithms with ``uses_hidden_labels = True``; (U, C)
    float32 under ``multilabel``."""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """(count, B or U, C, h, w) views of `Views.extra`, by name."""
