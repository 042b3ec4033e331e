"""Virtual adversarial training (Miyato et al., TPAMI 2018, arXiv:1704.03976)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_toolkit import (
    USB_SETTINGS,
    Algorithm,
    Batch,
    Context,
    ForwardOutput,
    Loss,
    Options,
    StepOutput,
    Views,
    option,
)
from ssl_toolkit.ops import at_least_float32, rampup


class VAT(Algorithm):
    """Train the prediction to be the same in the direction in which it changes most.

    The perturbation of an unlabeled image is the one of length `epsilon` that changes the
    prediction most, estimated by power iteration; the entropy of the predictions is minimized too.
    """

    family: ClassVar[str] = "consistency"
    mixes_images: ClassVar[bool] = True

    class Config(Options):
        """Options of VAT."""

        epsilon: float = option(
            3.0,
            gt=0,
            help="Euclidean length of the perturbation, of images in [0, 1]",
            source="MixMatch's baseline: 6, of images in [-1, 1]; USB: 6, of normalized ones",
        )
        power_iterations: int = option(
            1, ge=1, help="power iterations for its direction", source="paper"
        )
        step_length: float = option(
            0.1,
            gt=0,
            help="length of the step that the iteration differentiates at (xi)",
            source="this project: float32 rounds shorter ones away; paper: 1e-6",
        )
        unsupervised_weight: float = option(
            0.3,
            ge=0,
            help="weight of the smoothness loss after its ramp; 0 for none",
            source="MixMatch's baseline: 0.3; USB's code: 1",
        )
        entropy_weight: float = option(
            0.06,
            ge=0,
            help="weight of the entropy; 0 for none",
            source="MixMatch's baseline and USB's code: 0.06",
        )
        rampup_fraction: float = option(
            0.4,
            ge=0,
            le=1,
            help="share of the run over which the smoothness loss rises from 0; 0 for no ramp",
            source="MixMatch's baseline and USB's code: 0.4",
        )
        unlabeled_ratio: int = option(
            1, ge=1, help="unlabeled images for each labeled one", source="USB's code: 1"
        )

    profiles: ClassVar[Mapping[str, Any]] = {"reference": USB_SETTINGS}
    config: Config

    def views(self) -> Views:
        """One weak view of every image."""
        return Views(unlabeled_weak=1, unlabeled_ratio=self.config.unlabeled_ratio)

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Cross-entropy + w(t) · local distributional smoothness + w_e · entropy."""
        c = self.config
        images = batch.unlabeled_weak[0]
        # The labeled images alone set BatchNorm's running statistics, as in USB. Both forwards of
        # the unlabeled ones are normalized by them alone: the prediction for another batch
        # differs without a perturbation.
        labeled = at_least_float32(ctx.model(batch.labeled_weak[0]))
        clean = at_least_float32(ctx.forward(images, update_statistics=False).logits)
        moved = images + c.epsilon * self._direction(images, clean.detach(), ctx)
        perturbed = ctx.forward(moved, update_statistics=False).logits
        ramp = rampup(ctx.step, ctx.max_steps, c.rampup_fraction)
        log_probs = clean.log_softmax(dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1).mean()
        return StepOutput(
            losses={
                "supervised": Loss(F.cross_entropy(labeled, batch.labels)),
                "unsupervised": Loss(_divergence(clean, perturbed), c.unsupervised_weight * ramp),
                "entropy": Loss(entropy, c.entropy_weight),
            }
        )

    def _direction(self, images: Tensor, clean: Tensor, ctx: Context) -> Tensor:
        """Return the direction (U, 3, H, W), of length 1, that changes the logits `clean` most."""
        if torch.is_autocast_enabled(images.device.type):
            # `input_gradient` is in float32: logits in half precision would hide the difference.
            with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
                clean = ctx.forward(images, update_statistics=False).logits

        def change(output: ForwardOutput) -> Tensor:
            return _divergence(clean, output.logits)

        whole = len(ctx.all_gather(images.new_zeros(len(images))))
        noise = torch.randn(whole, *images.shape[1:], generator=ctx.generator)
        direction = _unit(ctx.local_shard(noise).to(images))
        for _ in range(self.config.power_iterations):
            gradient = ctx.input_gradient(images + self.config.step_length * direction, change)
            direction = _unit(gradient.to(images))
        return direction


def _unit(vectors: Tensor) -> Tensor:
    """Scale each image (n, 3, H, W) to length 1."""
    # Divided by the largest entry first, whose square could underflow.
    vectors = vectors / vectors.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    lengths = vectors.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()
    return vectors / lengths.clamp_min(1e-12)


def _divergence(clean: Tensor, perturbed: Tensor) -> Tensor:
    """Mean KL(softmax(clean) || softmax(perturbed)); no gradient into `clean`."""
    targets = at_least_float32(clean.detach()).log_softmax(dim=-1)
    log_probs = at_least_float32(perturbed).log_softmax(dim=-1)
    return F.kl_div(log_probs, targets, reduction="batchmean", log_target=True)
