"""The task of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from ssl_toolkit.config.images import Size, sides

Task = Literal["multiclass", "multilabel"]
"""``multiclass``: an image has one class. ``multilabel``: an image has any number of classes."""


@dataclass(frozen=True)
class TaskInfo:
    """Properties of the task, for the constructor of an algorithm."""

    num_classes: int
    feature_dim: int
    """Dimension of the backbone's features, for additional heads."""
    label_counts: tuple[int, ...]
    """Number of labeled images per class, of length C; under ``multilabel``, of those that have
    the class."""
    unlabeled_count: int
    """Number of images in the unlabeled pool."""
    max_steps: int
    image_size: Size = 32
    """Side of the images in pixels if they are square, else (height, width)."""
    channels: int = 3
    """Number of channels of the images; 3 for RGB."""
    batch_size: int = 64
    """B, the number of labeled images in a batch of all processes."""
    processes: int = 1
    """Number of processes that share each batch."""
    labeled_images: int | None = None
    """Number of labeled images, if it isn't the sum of `label_counts`, as under ``multilabel``."""
    kind: Task = "multiclass"
    """Under ``multilabel``, labels are (B, C) float32 in {0, 1}, and the probabilities of the
    classes are independent: the sigmoid of the logits, not their softmax."""
    flip: bool = True
    """True if mirrored images keep their class, for augmenters that the algorithm creates."""
    model_factory: Callable[[bool], nn.Module] | None = field(default=None, repr=False)
    """Implements `new_model`; only tests set it."""

    @property
    def labeled_count(self) -> int:
        """Number of labeled images."""
        return sum(self.label_counts) if self.labeled_images is None else self.labeled_images

    @property
    def shorter_side(self) -> int:
        """Shorter side of the images in pixels."""
        return min(sides(self.image_size))

    def new_model(self, pretrained: bool = False) -> nn.Module:
        """Return another network of the run's kind, for methods with a second network.

        It has the run's backbone, a new head and the normalization inside, and maps images to a
        `ForwardOutput`. Call it in ``__init__`` and assign it to an attribute: it is then saved,
        and trained with the rate of the head. Its weights are drawn from torch's global generator,
        which is seeded. What the run freezes is frozen here too, with the weights of the run.

        Args:
            pretrained: True to start the backbone from the weights that the run starts from
                (``--pretrained`` or ``--weights``), if any.

        Raises:
            RuntimeError: This object was created without a `model_factory`.
        """
        if self.model_factory is None:
            raise RuntimeError(
                "this TaskInfo creates no models; pass TaskInfo(..., model_factory=f), where "
                "f(pretrained) returns a network"
            )
        return self.model_factory(pretrained)
