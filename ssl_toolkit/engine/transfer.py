"""Use of a pre-trained backbone before the first step: features, probe and initial head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ssl_toolkit.engine.batches import BatchMaker
from ssl_toolkit.engine.distributed import ProcessGroup
from ssl_toolkit.engine.features import FeatureExtractor
from ssl_toolkit.engine.random_orders import seeded_generator
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
    """Accuracy on the labels held out by cross-validation; None if a class has one label."""
    validation: Tensor
    """(n, C) float32 probabilities of the validation images; likewise below."""
    test: Tensor
    shares: Tensor | None = None
    """(C,) float32 class shares of the pool by its predictions; None without unlabeled images."""

    def averaged(self, processes: ProcessGroup) -> ProbeResult:
        """Average the shares over the processes: last digits differ between kinds of hardware."""
        if self.shares is None:
            return self
        return replace(self, shares=processes.all_reduce_sum(self.shares) / processes.size)


@dataclass(frozen=True)
class Transfer:
    """How a run uses the features of the weights that it starts from.

    Args:
        probe: True to fit the probe and report it.
        head: initial head of training: ``random``, ``zero`` or ``probe``.
        frozen: True if the whole backbone is frozen, so that a transform of its features stays
            valid.
        cached: True to draw batches from features.
        views: views of a step.
        count: augmented views of each image whose features batches draw from.
        batch_size: images in a forward pass.
        seed: seed of the run.
        most: maximum number of unlabeled images, drawn by the seed; None for all.
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
        """Compute the features, initialize the head, and switch batches to features.

        Args:
            classifier: the live model.
            batches: changed in place to draw from features, under `cached`.
            validation: (n,) image indices.
            test: (m,) image indices.
            first: True before the first step; a resumed run has its head and probe already.

        Returns:
            Results of the probe, None if none was fitted.
        """
        images = batches.images
        fits = first and self.fits
        if not (self.cached or fits):
            return None
        if images.streamed is not None:  # only labeled images are in memory
            images = replace(images, streamed=None, unlabeled=images.labeled[:0])
        images = self._sample(images)
        extractor = None
        features = images.features
        if features is None:
            extractor = FeatureExtractor(classifier, self.batch_size, progress=self.progress)
            indices = torch.unique(torch.cat([images.labeled, images.unlabeled, validation, test]))
            plain = extractor.plain(images.loaded, indices)
            features = ImageSource(_spread(plain, indices, len(images.loaded)))
        result = None
        if fits:
            result = self._fit(classifier, features, images, validation, test)
        if self.cached:
            views = (
                self._identity_views(features, images, batches.augmenters)
                if extractor is None
                else self._views(extractor, features, images, batches.augmenters)
            )
            batches.images = replace(images, features=features, feature_views=views)
        return result if self.probe else None

    def _sample(self, images: TrainingImages) -> TrainingImages:
        """Return the training images with at most `most` unlabeled ones."""
        count = len(images.unlabeled)
        if self.most is None or count <= self.most:
            return images
        generator = seeded_generator(self.seed, "unlabeled")
        sample = torch.randperm(count, generator=generator)[: self.most].sort().values
        sample = sample.to(images.unlabeled.device)
        return replace(images, unlabeled=images.unlabeled[sample], hidden=images.hidden[sample])

    def _fit(
        self,
        classifier: Classifier,
        features: ImageSource,
        images: TrainingImages,
        validation: Tensor,
        test: Tensor,
    ) -> ProbeResult | None:
        labeled, pool = (
            features.gather(indices).cpu() for indices in (images.labeled, images.unlabeled)
        )
        if self.head == "probe" and not self.frozen:
            transform = unit_length(classifier.blocks)
        else:
            transform = pooled_transform(torch.cat([labeled, pool]), classifier.blocks)
        if images.labels.ndim == 2:  # --task multilabel has no probe
            if isinstance(classifier.head, FeatureHead):
                classifier.head.transform.load_state_dict(transform.state_dict())
            return None
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

    def _identity_views(
        self, features: ImageSource, images: TrainingImages, augmenters: Iterable[str]
    ) -> FeatureViews:
        """Return data that are features as their only views."""
        count = 1 if self.count else 0
        assert isinstance(features.images, Tensor)
        same = features.images.unsqueeze(0).expand(count, -1, -1)
        return FeatureViews(dict.fromkeys(augmenters, same), images.labeled, images.unlabeled)

    def _views(
        self,
        extractor: FeatureExtractor,
        features: ImageSource,
        images: TrainingImages,
        augmenters: Mapping[str, Augmenter],
    ) -> FeatureViews:
        """Return features of the kinds of views that a step uses; empty stacks for the others."""
        # All training images at once: the splits of a cross-validation then share what is cached.
        indices = torch.unique(torch.cat([images.labeled, images.unlabeled]))
        stacks = {"plain": features.gather(indices)[None]}
        for name, augmenter in augmenters.items():
            if name not in stacks:
                count = self.count if self.views.uses(name) else 0
                views = extractor.views(images.loaded, indices, augmenter, count, self.seed)
                stacks[name] = views.to(images.labels.device)
        labeled = torch.searchsorted(indices, images.labeled)
        unlabeled = torch.searchsorted(indices, images.unlabeled)
        return FeatureViews(stacks, labeled, unlabeled)


def _spread(features: Tensor, indices: Tensor, count: int) -> Tensor:
    """Return features of all loaded images: those of these indices, zeros elsewhere."""
    if len(indices) == count:
        return features
    spread = features.new_zeros(count, features.shape[1])
    spread[indices] = features
    return spread


def training_features(images: TrainingImages, blocks: tuple[int, ...]) -> TrainingFeatures:
    """Return the features that a `FeatureAlgorithm` is fitted to."""
    assert images.features is not None
    assert images.feature_views is not None
    views = images.feature_views
    labeled, unlabeled = (
        torch.cat(
            [images.features.gather(indices).unsqueeze(0), views.stacks["weak"][:, places]]
        ).cpu()
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
    features: bool,
    freeze: str,
    head: str,
    count: int,
    batch_size: int,
    seed: int,
    progress: Progress | None,
) -> Transfer | None:
    """Return the transfer of a run, None if it trains on images from random weights.

    Args:
        algorithm: algorithm of the run.
        views: views of a step.
        probe: ``model.probe``, resolved.
        features: True if the data are features already.
        freeze: ``model.freeze``, resolved.
        head: ``model.head_init``, resolved.
        count: ``model.feature_views``; 0 if each step needs images.
        batch_size: images in a forward pass.
        seed: seed of the run.
        progress: called while features are computed.
    """
    transfer = Transfer(probe, head, True, True, views, count, batch_size, seed, None, progress)
    if isinstance(algorithm, FeatureAlgorithm):
        count = algorithm.augmented_views
        views = Views(labeled_weak=min(count, 1), unlabeled_weak=min(count, 1))
        most = algorithm.most_unlabeled
        return replace(transfer, head="random", views=views, count=count, most=most)
    if features:
        return replace(transfer, count=1)
    frozen = freeze == "backbone"
    if frozen and count > 0 and not getattr(algorithm, "mixes_images", False):
        return transfer
    transfer = replace(transfer, frozen=frozen, cached=False, most=PROBE_IMAGES)
    return transfer if transfer.fits else None
