"""MixMatch (Berthelot et al., NeurIPS 2019, arXiv:1905.02249) and its form with strong views."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from ssl_toolkit import Algorithm, Batch, Context, StepOutput, Views, option
from ssl_toolkit_mixmatch.mixture import PROFILES, MixingOptions, mixmatch_step


class MixMatch(Algorithm):
    """Pseudo-label images from weak views, mix all images and labels, fit the mixtures."""

    family: ClassVar[str] = "mixing"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine"})

    class Config(MixingOptions):
        """Options of MixMatch."""

    mixes_images: ClassVar[bool] = True
    profiles = PROFILES
    config: Config

    def views(self) -> Views:
        """Return one weak labeled view and K weak unlabeled views."""
        return Views(
            unlabeled_weak=self.config.weak_views, unlabeled_ratio=self.config.unlabeled_ratio
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return L_X + r · lambda_U · L_U on MixMatch(X, U), eqs. 2-5."""
        return mixmatch_step(self.config, batch, batch.unlabeled_weak, ctx)


class MixMatchEnhanced(Algorithm):
    """MixMatch with augmentation anchoring: strong views use the pseudo labels of weak ones.

    The baseline of the SimPLE paper, as in its authors' code. That code can also add the Pair Loss
    on mixed labels, with weight 0 in every published run; it is not implemented here.
    """

    family: ClassVar[str] = "mixing"
    addon_hooks: ClassVar[frozenset[str]] = frozenset({"refine"})

    class Config(MixingOptions):
        """Options of MixMatch Enhanced."""

        strong_views: int = option(
            7, ge=1, help="strong views of each unlabeled image", source="SimPLE, ablation table"
        )
        train_on: Literal["both", "strong"] = option(
            "both",
            help="which unlabeled views are trained on: weak and strong, or strong only",
            source="SimPLE's authors",
        )

    mixes_images: ClassVar[bool] = True
    profiles = PROFILES
    config: Config

    def views(self) -> Views:
        """Return one weak labeled view, K weak and K_strong strong unlabeled views."""
        return Views(
            unlabeled_weak=self.config.weak_views,
            unlabeled_strong=self.config.strong_views,
            unlabeled_ratio=self.config.unlabeled_ratio,
        )

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Run the step of MixMatch with U^ = weak and strong views, all with one pseudo label."""
        views = batch.unlabeled_strong
        if self.config.train_on == "both":
            views = torch.cat([batch.unlabeled_weak, views])
        return mixmatch_step(self.config, batch, views, ctx)
