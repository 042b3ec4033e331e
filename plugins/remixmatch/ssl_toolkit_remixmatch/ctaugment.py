"""CTAugment (Berthelot et al., ICLR 2020, arXiv:1911.09785, section 3.2.2)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import AugmentationParams, Augmenter, Options, PixelFormat, option
from ssl_toolkit_remixmatch.operations import KERNELS, Drawn, crop_and_mirror
from ssl_toolkit_remixmatch.pool import BINS, METHODS, POOL, RESCALE

SHIFT_COLUMNS, SLOT_COLUMNS = 3, 6


class CTAugment(Augmenter):
    """Applies operations of a pool of 19, at magnitudes at which the model recognizes the image.

    Each magnitude is divided into bins (17; 8 for posterize, 6 filters for rescale) with a weight.
    A view takes `depth` operations, uniformly drawn with replacement, and for each a bin with the
    probability of its weight; bins whose weight is below `threshold` times the largest are not
    drawn. For feedback, labeled images are augmented with all bins equally likely, and the weight m
    of each bin used becomes decay · m + (1 - decay) · w with w = 1 - sum_c |p(c) - y(c)| / 2, the
    probability of the true class, one image after the other.

    The paper takes the mean over the classes in place of the sum, and compares m itself with the
    threshold. With 10 classes no weight could then fall below 0.9, so this follows the authors'
    code in both. The ranges are those of the paper's table. In the authors' code, brightness,
    color, contrast and sharpness range from 0.1 to 2, and translations and the margin of rescale
    are at most 0.3 pixels. The weak augmentation comes first, as in the code; Cutout is one of the
    operations, and isn't applied to each image as in FixMatch.

    Images of other formats have a smaller pool: without color unless they are RGB, and with 16 bits
    without equalize and posterize, whose results have 256 levels.
    """

    wants_feedback: ClassVar[bool] = True
    channels: ClassVar[frozenset[int] | None] = None

    class Config(Options):
        """Options of CTAugment."""

        depth: int = option(
            2, ge=1, le=8, help="number of operations per image", source="authors' code: 2"
        )
        decay: float = option(
            0.99, ge=0, lt=1, help="decay of the weights (rho)", source="paper: 0.99"
        )
        threshold: float = option(
            0.8,
            ge=0,
            le=1,
            help="smallest weight of a bin that is drawn, as a share of the largest",
            source="paper: 0.8",
        )
        include_weak: bool = option(
            True, help="crop and mirror before the operations", source="authors' code"
        )

    config: Config
    weights: Tensor
    """(20, 17), of the bins of each operation, then of the filters; 1 at first."""

    def __init__(self, config: Options | None = None, *, flip: bool = True) -> None:
        super().__init__(config, flip=flip)
        self.register_buffer("weights", torch.ones(len(POOL) + 1, BINS))
        self._drawn = torch.arange(len(POOL))
        self._bins = torch.tensor([*(entry.bins for entry in POOL), len(KERNELS)])

    def omit_operations(self, pixels: PixelFormat) -> tuple[str, ...]:
        """Leave out color unless the images are RGB, equalize and posterize for 16 bits."""
        omitted = [
            (entry.needs_rgb and pixels.channels != 3) or (entry.needs_8_bits and pixels.bits > 8)
            for entry in POOL
        ]
        self._drawn = torch.tensor([i for i, out in enumerate(omitted) if not out])
        return tuple(entry.name for entry, out in zip(POOL, omitted, strict=True) if out)

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw operations uniformly, and their bins by the weights."""
        # As in the authors' code, 1 - decay prevents weights that are all zero.
        weights = self._existing(self.weights.cpu() + (1 - self.config.decay))
        weights = weights / weights.amax(dim=1, keepdim=True)
        weights = weights.masked_fill(weights < self.config.threshold, 0)
        return self._draw(count, height, width, weights, generator)

    def draw_probe(
        self, count: int, height: int, width: int, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw operations and bins uniformly."""
        weights = self._existing(torch.ones(self.weights.shape))
        return self._draw(count, height, width, weights, generator)

    def _existing(self, weights: Tensor) -> Tensor:
        """Set the weights of bins that a row does not have to 0."""
        return weights.masked_fill(torch.arange(BINS) >= self._bins[:, None], 0)

    def _draw(
        self, count: int, height: int, width: int, weights: Tensor, generator: torch.Generator
    ) -> AugmentationParams:
        """Draw for given weights (20, 17).

        Returns:
            ``operation`` and ``bin``, (count, depth) int64; the fields of `Drawn`, (count, depth);
            and ``shift``, (count, 3) in [0, 1), if `include_weak`.
        """
        depth = self.config.depth
        columns = [SHIFT_COLUMNS, SLOT_COLUMNS * depth]
        # Filled row by row, so that a longer draw starts with a shorter one.
        uniform = torch.rand(count, sum(columns), generator=generator)
        shift, slots = torch.split(uniform, columns, dim=1)
        slots = slots.reshape(count, SLOT_COLUMNS, depth).double()
        picked, of_bin, inside, of_method, row, column = slots.unbind(1)
        operation = self._drawn[(picked * len(self._drawn)).long()]
        limits = weights.double().cumsum(dim=1)
        chosen = _pick(limits[operation], of_bin)
        draws = {
            "operation": operation,
            "bin": chosen,
            "level": (chosen + inside) / self._bins[operation],
            "method": _pick(limits[METHODS].expand(count, depth, -1), of_method),
            "row": row,
            "column": column,
        }
        if self.config.include_weak:
            draws["shift"] = shift
        return draws

    def transform(self, images: Tensor, draws: AugmentationParams) -> Tensor:
        """Augment images (N, C, H, W) by N rows of draws, in float32 or wider."""
        work = images.to(torch.promote_types(images.dtype, torch.float32), copy=True)
        if "shift" in draws:
            work = crop_and_mirror(work, draws["shift"], self.flip)
        for slot, operations in enumerate(draws["operation"].unbind(1)):
            for index, entry in enumerate(POOL):
                rows = (operations == index).nonzero()[:, 0]  # on the CPU, as all draws
                if len(rows):
                    drawn = Drawn(*(draws[name][rows, slot] for name in Drawn._fields))
                    rows = rows.to(images.device, non_blocking=True)
                    work.index_copy_(0, rows, entry.operation(work.index_select(0, rows), drawn))
        return work.to(images.dtype)

    def feedback(self, draws: AugmentationParams, probs: Tensor, labels: Tensor) -> None:
        """Move the weight of each bin used toward the agreement of prediction and label.

        Args:
            draws: Parameters from `draw_probe`.
            probs: (B, C) probabilities.
            labels: (B,) int64.
        """
        agreement = 1 - (probs - F.one_hot(labels, probs.shape[-1])).abs().sum(dim=-1) / 2
        decay, weights = self.config.decay, self.weights.tolist()
        names = ("operation", "bin", "method")
        for value, *slots in zip(
            agreement.tolist(), *(draws[name].tolist() for name in names), strict=True
        ):
            for operation, chosen, method in zip(*slots, strict=True):
                used = [(operation, chosen)]
                if operation == RESCALE:
                    used.append((METHODS, method))
                for row, column in used:
                    weights[row][column] = decay * weights[row][column] + (1 - decay) * value
        self.weights.copy_(torch.tensor(weights))


def _pick(limits: Tensor, uniform: Tensor) -> Tensor:
    """Return the first of the cumulated weights (n, depth, k) above uniform numbers (n, depth)."""
    drawn = (uniform * limits[..., -1])[..., None]
    return torch.searchsorted(limits.contiguous(), drawn, right=True)[..., 0]
