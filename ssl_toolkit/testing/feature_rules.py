"""Rules for algorithms that fit a head to frozen features."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.checkpoints import seed_everything
from ssl_toolkit.interfaces import FeatureAlgorithm, TaskInfo, TrainingFeatures
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.testing.assertions import no_global_draws, unmodified
from ssl_toolkit.testing.rules import RuleViolationError, error_line, require
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import TinyNetwork

CLASSES = 4
BLOCKS = (10, 6)
"""Dimensions of the last features of a backbone, and of those of one earlier stage."""
POOL = 48
LABELS = torch.arange(CLASSES).repeat(5)
TEST_LABELS = torch.arange(CLASSES).repeat(8)


def declares_augmented_views(subject: Subject) -> None:
    """`augmented_views` is a constant whole number of at least 0.

    Why: the engine computes that many views before it calls `fit`.
    Cause: augmented_views depends on more than the options.
    """
    algorithm = _build(subject, _training_features())
    counts = [algorithm.augmented_views for _ in range(3)]
    require(len({*map(repr, counts)}) == 1, f"it was {', '.join(map(str, counts))}")
    require(type(counts[0]) is int and counts[0] >= 0, f"it is {counts[0]!r}")


def returns_logits(subject: Subject) -> None:
    """`fit` returns a module that maps features (N, D), zeros included, to finite logits (N, C).

    Why: evaluation, export and prediction attach the head to the backbone.
    Cause: `fit` returns a function or too few classes, or divides by a norm of 0.
    """
    head = _fit(subject)
    for features in (_test_features(), _test_features()[:1], torch.zeros(1, sum(BLOCKS))):
        _require_logits(_logits(head, subject, features), len(features))


def predicts_images_independently(subject: Subject) -> None:
    """In eval mode, the logits of an image depend neither on the batch nor on the call.

    Why: scores and the predictions of an exported model must not depend on the batch size.
    Cause: BatchNorm in train mode, active dropout, or statistics of the batch.
    """
    head = _fit(subject)
    logits = _logits(head, subject)
    alone = torch.cat([_logits(head, subject, image[None]) for image in _test_features()])
    require(torch.allclose(logits, alone, atol=1e-4), "logits depend on the batch")
    require(torch.equal(logits, _logits(head, subject)), "logits differ between two calls")


def learns_separable_features(subject: Subject) -> None:
    """The head reaches an accuracy of 80 % on well-separated classes.

    Why: column c of the logits is class c in every table, file and exported model.
    Cause: columns in the order in which labels occur, or distances instead of scores.
    """
    predictions = _logits(_fit(subject), subject).argmax(dim=1)
    accuracy = (predictions == TEST_LABELS).float().mean()
    require(accuracy >= 0.8, f"the accuracy on 4 well-separated classes is {accuracy:.0%}")


def fits_reproducibly(subject: Subject) -> None:
    """Equal features and generators give equal heads, whatever the global seeds.

    Why: a run must give the same result when it is resumed or repeated.
    Cause: a random_state that isn't drawn from the generator, or none at all.
    """
    heads = []
    for seed in (1, 2):
        seed_everything(seed)
        heads.append(_logits(_fit(subject), subject))
    require(torch.equal(*heads), f"logits differ by up to {(heads[0] - heads[1]).abs().max():.2g}")


def uses_no_global_generator(subject: Subject) -> None:
    """`fit` only draws from its generator.

    Why: draws from a global generator change every later draw of the process.
    Cause: the initial weights of nn.Linear (FeatureHead.linear draws none), or numpy.random.
    """
    with no_global_draws("fit"):
        _fit(subject)


def does_not_modify_features(subject: Subject) -> None:
    """`fit` modifies neither features nor labels.

    Why: the engine evaluates on the same features afterwards.
    Cause: an in-place operation on a tensor of `features`.
    """
    algorithm = _build(subject, _training_features())
    features = _training_features(views=algorithm.augmented_views)
    names = ("labeled", "labels", "unlabeled")
    with unmodified({name: getattr(features, name) for name in names}):
        algorithm.fit(features, torch.Generator().manual_seed(3))


def supports_empty_pool(subject: Subject) -> None:
    """`fit` works without unlabeled images.

    Why: a run may have labeled images only, and --algo auto tries every method.
    Cause: a mean or a graph over the empty pool.
    """
    _require_logits(_logits(_fit(subject, pool=0), subject))


def supports_one_label_per_class(subject: Subject) -> None:
    """`fit` works with one label per class, also with a pool of three images.

    Why: one label per class is a common setting of papers and users.
    Cause: cross-validation, or more neighbors than images.
    """
    for pool in (POOL, 3):
        _require_logits(_logits(_fit(subject, LABELS[:CLASSES], pool), subject))


def supports_classes_without_labels(subject: Subject) -> None:
    """The logits have a column for a class without any label.

    Why: a random choice of labels may leave out a rare class.
    Cause: columns only for classes that occur in the labels.
    """
    _require_logits(_logits(_fit(subject, LABELS[LABELS != 1]), subject))


def restores_head(subject: Subject) -> None:
    """A head that is restored from its state dict or a pickle returns the same logits.

    Why: checkpoints and exported models store tensors, from which the head is rebuilt.
    Cause: a module other than FeatureHead or Linear, or values outside of buffers.
    """
    head = _fit(subject).cpu()
    expected = head(_test_features())
    classifier = Classifier(TinyNetwork(), CLASSES)
    classifier.head = nn.Linear(sum(BLOCKS), CLASSES)
    state = {k: v for k, v in classifier.state_dict().items() if not k.startswith("head.")}
    try:
        classifier.load_state_dict(state | {f"head.{k}": v for k, v in head.state_dict().items()})
    except RuntimeError as error:
        raise RuleViolationError(error_line(error)[:200]) from error
    restored = {"state dict": classifier.head, "pickle": pickle.loads(pickle.dumps(head))}
    for origin, module in restored.items():
        equal = torch.equal(module.eval()(_test_features()), expected)
        require(equal, f"restored from a {origin}, the head returns other logits")


def _features(labels: Tensor, seed: int, views: int = 0) -> Tensor:
    """Return features (1 + views, N, D) around one center per class, as after a ReLU."""
    centers = torch.randn(CLASSES, sum(BLOCKS), generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(1 + views, len(labels), sum(BLOCKS), generator=generator)
    return (3 * centers[labels] + noise).relu()


def _test_features() -> Tensor:
    return _features(TEST_LABELS, 4)[0]


def _training_features(
    labels: Tensor = LABELS, pool: int = POOL, views: int = 0
) -> TrainingFeatures:
    labeled, unlabeled = labels.clone(), torch.arange(pool) % CLASSES
    return TrainingFeatures(
        _features(labeled, 1, views), labeled, _features(unlabeled, 2, views), BLOCKS
    )


def _build(subject: Subject, features: TrainingFeatures) -> FeatureAlgorithm:
    task = TaskInfo(
        num_classes=CLASSES,
        feature_dim=sum(BLOCKS),
        label_counts=tuple(torch.bincount(features.labels, minlength=CLASSES).tolist()),
        unlabeled_count=features.unlabeled.shape[1],
        max_steps=1,
    )
    algorithm: FeatureAlgorithm = subject.plugin(subject.options(), task)
    return algorithm


def _fit(subject: Subject, labels: Tensor = LABELS, pool: int = POOL) -> nn.Module:
    """Return a head in eval mode, on the device of the subject."""
    algorithm = _build(subject, _training_features(labels, pool))
    features = _training_features(labels, pool, algorithm.augmented_views)
    head = algorithm.fit(features, torch.Generator().manual_seed(3))
    return head.to(subject.device).eval()


@torch.no_grad()
def _logits(head: nn.Module, subject: Subject, features: Tensor | None = None) -> Tensor:
    features = _test_features() if features is None else features
    logits: Tensor = head(features.to(subject.device))
    return logits.float().cpu()


def _require_logits(logits: Tensor, count: int = len(TEST_LABELS)) -> None:
    shape = tuple(logits.shape)
    require(shape == (count, CLASSES), f"logits are {shape}, not {(count, CLASSES)}")
    require(logits.isfinite().all(), "a logit is inf or nan")
