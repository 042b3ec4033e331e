"""Use of a pre-trained backbone before the first step: features, the probe, the first head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ssl_toolkit.engine.batches import BatchMaker, seeded_generator
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.features import FeatureExtractor
from ssl_toolkit.engine.shares import estimate_shares
from ssl_toolkit.engine.training_images import FeatureViews, ImageSource, TrainingImages
from ssl_toolkit.interfaces import Augmenter, FeatureAlgorithm, TrainingFeatures, Views
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.heads import FeatureHead
from ssl_toolkit.models.probe import fit_probe, pooled_transform, unit_length

Progress = Callable[[int, int], None]

PROBE_IMAGES = 2000
"""Unlabeled images from which the probe of a run that trains its backbone takes statistics."""


@dataclass(frozen=True)
class ProbeResult:
    """Result of the linear probe of the first weights, for comparison with the run."""

    strength: float
    """C of the logistic regression."""
    cross_validation: float | None
    """Accuracy on the labels held out by cross-validation; None with one label in some class."""
    validation: Tensor
    """(n, C) float32 probabilities of the validation images; likewise below."""
    test: Tensor
    shares: Tensor | None = None
    """(C,) float32 class shares of the pool by its predictions there; None where none was seen."""

    def averaged(self, processes: ProcessGroup) -> ProbeResult:
        """With the shares of all processes, whose last digits differ between kinds of hardware."""
        if self.shares is None:
            return self
        return replace(self, shares=processes.all_reduce_sum(self.shares) / processes.size)

    def state(self) -> dict[str, Any]:
        """Tensors and plain types, for a checkpoint."""
        return vars(self)


@dataclass(frozen=True)
class Transfer:
    """How a run uses the features of the weights that it starts from.

    Args:
        probe: whether the probe is fitted and kept for the report.
        head: the head that training starts from: ``random``, ``zero`` or ``probe``.
        frozen: whether the whole backbone is, so that a transform of its features stays right.
        cached: whether batches are drawn from features.
        views: of a step.
        count: augmented views of each image whose features batches draw from.
        batch_size: images in a forward.
        seed: of the run.
        most: unlabeled images that are looked at, drawn by the seed; None for all.
        progress: called while features are computed.
    """

    probe: bool
    head: str
    frozen: bool
    cached: bool
    views: Views
    count: int
    batch_size: int
    seed: int
    most: int | None = None
    progress: Progress | None = None

    @property
    def fits(self) -> bool:
        """True if a probe or a transform is fitted to features before the first step."""
        return self.probe or self.head == "probe" or (self.head == "zero" and self.frozen)

    def start(
        self,
        classifier: Classifier,
        batches: BatchMaker,
        validation: Tensor,
        test: Tensor,
        *,
        first: bool,
    ) -> ProbeResult | None:
        """Compute what is needed, set up the head, and let batches come from features.

        Args:
            classifier: the live model.
            batches: changed to draw from features under `cached`.
            validation: (n,) image indices.
            test: (m,) image indices.
            first: whether no step has been done; a resumed run has its head and probe already.

        Returns:
            The probe's results, None where none was fitted.
        """
        images = batches.images
        fits = first and self.fits
        if not (self.cached or fits):
            return None
        if images.streamed is not None:  # streamed: the labeled ones alone can be looked at
            images = replace(images, streamed=None, unlabeled=images.labeled[:0])
        images = self._drawn(images)
        extractor = None
        features = images.features
        if features is None:
            extractor = FeatureExtractor(classifier, self.batch_size, progress=self.progress)
            indices = torch.unique(torch.cat([images.labeled, images.unlabeled, validation, test]))
            plain = extractor.plain(images.loaded, indices)
            features = ImageSource(_spread(plain, indices, len(images.loaded)))
        found = None
        if fits:
            fitted = self._fit(classifier, features, images, validation, test)
            found = fitted if self.probe else None
        if self.cached:
            views = (
                self._given(features, images)
                if extractor is None
                else self._views(extractor, images, batches.weak, batches.strong)
            )
            batches.images = replace(images, features=features, feature_views=views)
        return found

    def _drawn(self, images: TrainingImages) -> TrainingImages:
        """The training images with `most` of the unlabeled ones."""
        count = len(images.unlabeled)
        if self.most is None or count <= self.most:
            return images
        generator = seeded_generator(self.seed, "unlabeled")
        chosen = torch.randperm(count, generator=generator)[: self.most].sort().values
        chosen = chosen.to(images.unlabeled.device)
        return replace(images, unlabeled=images.unlabeled[chosen], hidden=images.hidden[chosen])

    def _fit(
        self,
        classifier: Classifier,
        features: ImageSource,
        images: TrainingImages,
        validation: Tensor,
        test: Tensor,
    ) -> ProbeResult:
        labeled, pool = (
            features.gather(indices).cpu() for indices in (images.labeled, images.unlabeled)
        )
        if self.head == "probe" and not self.frozen:
            transform = unit_length(classifier.blocks)
        else:
            transform = pooled_transform(torch.cat([labeled, pool]), classifier.blocks)
        probe = fit_probe(labeled, images.labels.cpu(), classifier.num_classes, transform)
        if self.head == "probe":
            classifier.head.load_state_dict(probe.calibrated_head().state_dict())
        elif self.head == "zero" and isinstance(classifier.head, FeatureHead):
            classifier.head.transform.load_state_dict(transform.state_dict())
        with torch.no_grad():
            validation_probs, test_probs = (
                probe.head(features.gather(indices).cpu()).softmax(dim=-1)
                for indices in (validation, test)
            )
            predicted = probe.head(pool).softmax(dim=-1)
        counts = torch.bincount(images.labels, minlength=classifier.num_classes).tolist()
        shares = estimate_shares(predicted, counts) if len(pool) else None
        return ProbeResult(probe.strength, probe.accuracy, validation_probs, test_probs, shares)

    def _given(self, features: ImageSource, images: TrainingImages) -> FeatureViews:
        """Data that are features have no views but themselves."""
        count = 1 if self.count else 0
        assert isinstance(features.images, Tensor)
        same = features.images.unsqueeze(0).expand(count, -1, -1)
        return FeatureViews(same, same, images.labeled, images.unlabeled)

    def _views(
        self,
        extractor: FeatureExtractor,
        images: TrainingImages,
        weak: Augmenter,
        strong: Augmenter,
    ) -> FeatureViews:
        """Features of the kinds of views that a step wants; empty stacks for the others."""
        v = self.views
        # All training images at once: the splits of a cross-validation then share what is cached.
        indices = torch.unique(torch.cat([images.labeled, images.unlabeled]))

        def computed(augmenter: Augmenter, *wanted: int) -> Tensor:
            count = self.count if any(wanted) else 0
            views = extractor.views(images.loaded, indices, augmenter, count, self.seed)
            return views.to(images.labels.device)

        weak_views = computed(weak, v.labeled_weak, v.unlabeled_weak)
        strong_views = computed(strong, v.labeled_strong, v.unlabeled_strong)
        labeled = torch.searchsorted(indices, images.labeled)
        unlabeled = torch.searchsorted(indices, images.unlabeled)
        return FeatureViews(weak_views, strong_views, labeled, unlabeled)


def _spread(features: Tensor, indices: Tensor, count: int) -> Tensor:
    """Features of all loaded images: those of these indices, zeros elsewhere."""
    if len(indices) == count:
        return features
    found = features.new_zeros(count, features.shape[1])
    found[indices] = features
    return found


def training_features(images: TrainingImages, blocks: tuple[int, ...]) -> TrainingFeatures:
    """Return the features that a `FeatureAlgorithm` is fitted to."""
    assert images.features is not None
    assert images.feature_views is not None
    views = images.feature_views
    labeled, unlabeled = (
        torch.cat([images.features.gather(indices).unsqueeze(0), views.weak[:, places]]).cpu()
        for indices, places in (
            (images.labeled, views.labeled),
            (images.unlabeled, views.unlabeled),
        )
    )
    return TrainingFeatures(labeled, images.labels.cpu(), unlabeled, blocks)


def transfer_for(
    algorithm: object,
    views: Views,
    *,
    probe: bool,
    given: bool,
    freeze: str,
    head: str,
    count: int,
    batch_size: int,
    seed: int,
    progress: Progress | None,
) -> Transfer | None:
    """The transfer of a run, None where it trains on images from random weights.

    Args:
        algorithm: of the run.
        views: of a step.
        probe: ``model.probe``, resolved.
        given: whether the data are features already.
        freeze: ``model.freeze``, resolved.
        head: ``model.head_init``, resolved.
        count: ``model.feature_views``; 0 where each step must see images.
        batch_size: images in a forward.
        seed: of the run.
        progress: called while features are computed.
    """
    if isinstance(algorithm, FeatureAlgorithm):
        count = algorithm.augmented_views
        wanted = 1 if count else 0
        views = Views(labeled_weak=wanted, unlabeled_weak=wanted)
        most = algorithm.most_unlabeled
        return Transfer(probe, "random", True, True, views, count, batch_size, seed, most, progress)
    if given:
        return Transfer(probe, head, True, True, views, 1, batch_size, seed, None, progress)
    mixes = bool(getattr(algorithm, "mixes_images", False))
    frozen = freeze == "backbone"
    cached = frozen and count > 0 and not mixes
    most = None if cached else PROBE_IMAGES
    made = Transfer(probe, head, frozen, cached, views, count, batch_size, seed, most, progress)
    return made if made.cached or made.fits else None
