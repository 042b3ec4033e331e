"""Rules for algorithms that fit a head to frozen features."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor, nn

from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.interfaces import FeatureAlgorithm, TaskInfo, TrainingFeatures
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.testing import form_rules
from ssl_toolkit.testing.rules import BrokenRuleError, require, reuse_rules, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import TinyNetwork, seed_globally

GROUP = "feature_algorithms"
CLASSES = 4
BLOCKS = (10, 6)
"""The features proper, and those of one stage."""
POOL = 48

reuse_rules("algorithms", GROUP, form_rules.__name__)


def features_of(labels: Tensor, seed: int, views: int = 0) -> Tensor:
    """Features (1 + views, n, D) around one center a class, not below 0 as after a ReLU."""
    centers = torch.randn(CLASSES, sum(BLOCKS), generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(1 + views, len(labels), sum(BLOCKS), generator=generator)
    return (3 * centers[labels] + noise).relu()


def _given(labels: Tensor, pool: int = POOL, views: int = 0) -> TrainingFeatures:
    hidden = torch.arange(pool) % CLASSES
    return TrainingFeatures(
        features_of(labels, 1, views), labels, features_of(hidden, 2, views), BLOCKS
    )


def _labels(each: int = 5) -> Tensor:
    return torch.arange(CLASSES).repeat(each)


def _made(subject: Subject, features: TrainingFeatures) -> FeatureAlgorithm:
    task = TaskInfo(
        num_classes=CLASSES,
        feature_dim=sum(BLOCKS),
        label_counts=tuple(torch.bincount(features.labels, minlength=CLASSES).tolist()),
        unlabeled_count=features.unlabeled.shape[1],
        max_steps=1,
    )
    made: FeatureAlgorithm = subject.plugin(subject.options(), task)
    return made


def _fitted(
    subject: Subject, labels: Tensor | None = None, pool: int = POOL, seed: int = 3
) -> nn.Module:
    """A head in eval mode, on the device of the subject."""
    labels = _labels() if labels is None else labels
    algorithm = _made(subject, _given(labels, pool))
    features = _given(labels, pool, algorithm.augmented_views)
    head = algorithm.fit(features, torch.Generator().manual_seed(seed))
    return head.to(subject.device).eval()


@torch.no_grad()
def _logits(head: nn.Module, subject: Subject, features: Tensor | None = None) -> Tensor:
    asked = _asked() if features is None else features
    found: Tensor = head(asked.to(subject.device))
    return found.float().cpu()


def _asked() -> Tensor:
    return features_of(_labels(8), 4)[0]


def _check_logits(logits: Tensor, count: int) -> None:
    require(
        logits.shape == (count, CLASSES),
        f"{count} images of {CLASSES} classes give logits of shape {tuple(logits.shape)}",
    )
    require(logits.isfinite().all(), "a logit is not finite")


@rule(
    GROUP,
    why="the engine computes as many views before it calls `fit`, which it does once.",
    cause="augmented_views depends on something else than the options",
)
def augmented_views_are_constant(subject: Subject) -> None:
    """`augmented_views` is the same whole number of at least 0 whenever it is asked for."""
    algorithm = _made(subject, _given(_labels()))
    found = [algorithm.augmented_views for _ in range(3)]
    require(len({*map(repr, found)}) == 1, f"it was {', '.join(map(str, found))}")
    require(type(found[0]) is int and found[0] >= 0, f"it is {found[0]!r}")


@rule(
    GROUP,
    why="evaluation, export and prediction put the head behind the backbone.",
    cause="`fit` returns a function or too few classes, or divides by a length of 0",
)
def head_gives_logits(subject: Subject) -> None:
    """`fit` returns a module that maps features (N, D), zeros included, to finite logits (N, C)."""
    head = _fitted(subject)
    require(isinstance(head, nn.Module), f"fit returned {type(head).__name__}")
    for count in (32, 1):
        _check_logits(_logits(head, subject, _asked()[:count]), count)
    _check_logits(_logits(head, subject, torch.zeros(1, sum(BLOCKS))), 1)


@rule(
    GROUP,
    why="scores would depend on the size of a batch, and an exported model on its company.",
    cause="BatchNorm in train mode, dropout that is left on, or statistics of the batch",
)
def head_sees_each_image_alone(subject: Subject) -> None:
    """In eval mode the logits of an image don't depend on the others, nor on the call."""
    head = _fitted(subject)
    together = _logits(head, subject)
    alone = torch.cat([_logits(head, subject, image[None]) for image in _asked()])
    require(torch.allclose(together, alone, atol=1e-4), "they do")
    require(torch.equal(together, _logits(head, subject)), "a second call gives others")


@rule(
    GROUP,
    why="column c of the logits is class c in every table, file and exported model.",
    cause="columns in the order in which labels were met, distances in place of scores",
)
def labels_are_learned(subject: Subject) -> None:
    """The classes of well-separated features are distinguished."""
    right = (_logits(_fitted(subject), subject).argmax(dim=1) == _labels(8)).float().mean()
    require(right >= 0.8, f"{100 * right:.0f} % of new images of 4 clear classes are right")


@rule(
    GROUP,
    why="a run has to give the same result under its seed, resumed or repeated.",
    cause="a random_state that isn't drawn from the generator, or none at all",
)
def fit_is_reproducible(subject: Subject) -> None:
    """Equal features and generators give equal heads, whatever the global generators hold."""
    heads = []
    for seed in (1, 2):
        seed_globally(seed, subject.device)
        heads.append(_logits(_fitted(subject), subject))
    require(torch.equal(*heads), f"logits differ by up to {(heads[0] - heads[1]).abs().max():.2g}")


@rule(
    GROUP,
    why="what is drawn after it would depend on the algorithm, and runs could not be compared.",
    cause="the first weights of an nn.Linear (FeatureHead.linear draws none), or numpy's generator",
)
def global_generators_are_left(subject: Subject) -> None:
    """`fit` takes no number from the global generators."""
    before = random_states()
    _fitted(subject)
    after = random_states()
    used = [name for name in ("python", "numpy") if before[name] != after[name]]
    used += [] if torch.equal(before["torch"], after["torch"]) else ["torch"]
    require(not used, f"the global generator of {' and '.join(used)} was used")


@rule(
    GROUP,
    why="the engine evaluates on the same features afterwards.",
    cause="an operation in place on what `features` holds",
)
def features_are_left_alone(subject: Subject) -> None:
    """`fit` changes neither features nor labels."""
    labels = _labels()
    algorithm = _made(subject, _given(labels))
    views = algorithm.augmented_views
    given, kept = (_given(_labels(), views=views) for _ in range(2))
    algorithm.fit(given, torch.Generator().manual_seed(3))
    for name in ("labeled", "labels", "unlabeled"):
        require(torch.equal(getattr(given, name), getattr(kept, name)), f"{name} was changed")


@rule(
    GROUP,
    why="a run may have labeled images alone, and --algo auto tries all that it finds.",
    cause="a mean or a graph over the pool, which is empty then",
)
def works_without_a_pool(subject: Subject) -> None:
    """Labels alone, without any unlabeled image, are enough."""
    _check_logits(_logits(_fitted(subject, pool=0), subject), 32)


@rule(
    GROUP,
    why="one label per class is the hardest setting of the papers, and a common start.",
    cause="cross-validation, or more neighbors than there are images",
)
def works_with_one_label_a_class(subject: Subject) -> None:
    """One label per class is enough, also with a pool of three images."""
    for pool in (POOL, 3):
        _check_logits(_logits(_fitted(subject, _labels(1), pool), subject), 32)


@rule(
    GROUP,
    why="labels that are drawn at random leave a rare class out now and then.",
    cause="columns for the classes that were met alone",
)
def works_without_labels_of_a_class(subject: Subject) -> None:
    """A class without any label has a column all the same."""
    labels = _labels()
    _check_logits(_logits(_fitted(subject, labels[labels != 1]), subject), 32)


@rule(
    GROUP,
    why="checkpoints and exported models hold tensors, from which the head is made again.",
    cause="a module of its own in place of FeatureHead or Linear, or values outside of buffers",
)
def head_comes_back_from_its_file(subject: Subject) -> None:
    """The head that is made from its state dict, or from a pickle, gives the same logits."""
    head = _fitted(subject).cpu()
    wanted = head(_asked())
    classifier = Classifier(TinyNetwork(), CLASSES)
    classifier.head = nn.Linear(sum(BLOCKS), CLASSES)
    own = {k: v for k, v in classifier.state_dict().items() if not k.startswith("head.")}
    try:
        classifier.load_state_dict(own | {f"head.{k}": v for k, v in head.state_dict().items()})
    except RuntimeError as error:
        raise BrokenRuleError(" ".join(str(error).split())[:200]) from error
    pickled = pickle.loads(pickle.dumps(head))
    for name, made in (("state dict", classifier.head), ("pickle", pickled)):
        found = made.eval()(_asked())
        require(torch.equal(found, wanted), f"the head of its {name} gives other logits")
