"""Views of images: what an algorithm requests, and the batches that contain them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Views:
    """Number of augmented views per image in a batch.

    `Views()` requests one weak view of the labeled images.
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

    @property
    def needs_unlabeled(self) -> bool:
        """True if any view of unlabeled images is requested."""
        return self.unlabeled_weak + self.unlabeled_strong > 0

    @property
    def per_labeled_image(self) -> int:
        """Number of all views in a batch, divided by its number of labeled images."""
        unlabeled = self.unlabeled_weak + self.unlabeled_strong
        return self.labeled_weak + self.labeled_strong + self.unlabeled_ratio * unlabeled


@dataclass(frozen=True)
class Batch:
    """Views of B labeled and U unlabeled images, on the device of the run.

    Views are float tensors (views, B or U, 3, H, W) in [0, 1].
    """

    labels: Tensor
    """(B,) int64."""
    labeled_indices: Tensor
    """(B,) int64, positions in the labeled set."""
    labeled_weak: Tensor
    labeled_strong: Tensor
    unlabeled_indices: Tensor
    """(U,) int64, positions in the unlabeled pool."""
    unlabeled_weak: Tensor
    unlabeled_strong: Tensor
    unlabeled_labels: Tensor | None = None
    """(U,) int64 hidden labels, only for algorithms with ``uses_hidden_labels = True``."""
