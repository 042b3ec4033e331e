"""Rules on augmenters."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor

from ssl_toolkit.engine.batches import seeded_generator
from ssl_toolkit.engine.checkpoints import random_states
from ssl_toolkit.interfaces import AugmentationParams, Augmenter
from ssl_toolkit.testing import host_sync
from ssl_toolkit.testing.rules import BrokenRuleError, require, rule
from ssl_toolkit.testing.subject import Subject
from ssl_toolkit.testing.trial import differing, listed

COUNT = 12
"""Images in a batch: enough for what is drawn rarely."""


@rule(
    "augmenters",
    why="the engine puts the draws of several views together, and keeps them on the host.",
    cause="one draw for the whole batch, or a draw that was moved to a device",
)
def draws_are_rows_on_the_cpu(subject: Subject) -> None:
    """`draw` gives CPU tensors with a row for each image, under the same names for any count."""
    augmenter = _make(subject)
    names = []
    for count in (1, 5):
        draws = _draw(augmenter, count)
        names.append(sorted(draws))
        for name, value in draws.items():
            good = isinstance(value, Tensor) and value.device.type == "cpu"
            require(good, f"draw {name!r} is no CPU tensor")
            rows = tuple(value.shape[:1])
            require(rows == (count,), f"draw {name!r} has {rows} rows for {count} images")
    require(names[0] == names[1], f"draws for 1 image are {names[0]}, for 5 {names[1]}")


@rule(
    "augmenters",
    why="a resumed run, and every algorithm of a comparison, sees the same views.",
    cause="numbers from elsewhere than the generator, or from the time",
)
def same_seed_same_draws(subject: Subject) -> None:
    """Generators with the same seed give the same draws, in two augmenters."""
    first, second = (_draw(_make(subject), COUNT) for _ in range(2))
    wrong = differing(first, second)
    require(not wrong, f"draws {listed(wrong)} differ under one seed")


@rule(
    "augmenters",
    why="rows of a comparison that take different numbers of images share the draws of the first.",
    cause="two tensors drawn in turn, or randn; cut the columns of one torch.rand(count, k)",
)
def shorter_draws_come_first(subject: Subject) -> None:
    """Under one seed, the rows of a shorter draw are the first rows of a longer one."""
    augmenter = _make(subject)
    # No multiple of 16 numbers in any draw: torch fills those of another length otherwise.
    longer = augmenter.draw(40, 15, 13, seeded_generator("contract"))
    for count in (1, 2, 5, 17):
        shorter = augmenter.draw(count, 15, 13, seeded_generator("contract"))
        first = {name: value[:count] for name, value in longer.items() if name in shorter}
        wrong = differing(first, {name: shorter[name] for name in first})
        message = f"draws {listed(wrong)} for {count} images are not the first of those for 40"
        require(not wrong, message)


@rule(
    "augmenters",
    why="draws are replayed, and transforms run on any device.",
    cause="a random number is drawn in transform; draw it in draw",
)
def transform_is_not_random(subject: Subject) -> None:
    """The same images and draws give the same views, twice."""
    augmenter, images = _make(subject), _images(subject)
    draws = _draw(augmenter, len(images))
    first, second = (augmenter.transform(images.clone(), draws) for _ in range(2))
    require(torch.equal(first, second), "transform gives other views the second time")


@rule(
    "augmenters",
    why="global generators are shared with the model: what draws from them shifts its draws.",
    cause="random.random(), numpy.random, or a torch function without generator=generator",
)
def no_global_randomness_is_used(subject: Subject) -> None:
    """Draw and transform leave the global generators as they are."""
    augmenter, images = _make(subject), _images(subject)
    _view(augmenter, images)  # what is imported by the first call may draw
    before = random_states()
    _view(augmenter, images)
    after = random_states()
    used = [name for name in ("python", "numpy") if before[name] != after[name]]
    used += ["torch"] * (not torch.equal(before["torch"], after["torch"]))
    require(not used, f"it draws from the global generator of {listed(used)}")


@rule(
    "augmenters",
    why="a view takes the place of its image in the batch.",
    cause="a crop that is not resized, or a conversion to float32",
)
def shape_and_dtype_are_kept(subject: Subject) -> None:
    """Views have the shape, dtype and device of the images, in float32 and float64."""
    augmenter = _make(subject)
    for dtype in (torch.float32, torch.float64):
        images = _images(subject).to(dtype)
        views = _view(augmenter, images)
        message = f"{tuple(views.shape)} {views.dtype} on {views.device}"
        same = (views.shape, views.dtype, views.device) == (
            images.shape,
            images.dtype,
            images.device,
        )
        require(same, f"{tuple(images.shape)} {dtype} on {images.device} became {message}")


@rule(
    "augmenters",
    why="the classifier normalizes images in [0, 1]; other values train it on something else.",
    cause="a missing clamp, or a division by a spread that is 0 in plain images",
)
def views_stay_in_range(subject: Subject) -> None:
    """Views are finite and in [0, 1], those of black, white and gray images too."""
    augmenter = _make(subject)
    plain = {"black": 0.0, "white": 1.0, "gray": 0.5}
    sets = {"random": _images(subject, 32)}
    sets |= {name: torch.full_like(_images(subject), level) for name, level in plain.items()}
    for name, images in sets.items():
        views = _view(augmenter, images)
        require(bool(views.isfinite().all()), f"a view of {name} images is not finite")
        low, high = views.amin().item(), views.amax().item()
        require(low >= 0 and high <= 1, f"views of {name} images go from {low:g} to {high:g}")


@rule(
    "augmenters",
    why="several views are made of the same images.",
    cause="an operation whose name ends in an underscore on the images themselves",
)
def images_are_left_alone(subject: Subject) -> None:
    """`transform` does not write into the images or the draws."""
    augmenter, images = _make(subject), _images(subject)
    draws = _draw(augmenter, len(images))
    before, drawn = images.clone(), {name: value.clone() for name, value in draws.items()}
    version = images._version
    augmenter.transform(images, draws)
    same = torch.equal(images, before) and images._version == version
    require(same, "transform writes into the images")
    wrong = differing(draws, drawn)
    require(not wrong, f"transform writes into the draws {listed(wrong)}")


@rule(
    "augmenters",
    why="all views of a step are made in one call; a view must not depend on its neighbors.",
    cause="a mean over the batch, or rows of draws taken in another order than the images",
)
def images_are_independent(subject: Subject) -> None:
    """A view is the same whether its image comes alone or in a batch."""
    augmenter, images = _make(subject), _images(subject)
    draws = _draw(augmenter, len(images))
    together = augmenter.transform(images, draws)
    for row in range(0, len(images), 3):
        alone = {name: value[row : row + 1] for name, value in draws.items()}
        view = augmenter.transform(images[row : row + 1], alone)
        furthest = (view[0] - together[row]).abs().amax().item()
        require(furthest < 1e-4, f"image {row} alone differs by up to {furthest:g}")


@rule(
    "augmenters",
    why="data sets bring their own size; predictions are made on images of any.",
    cause="one side used for both, or a hard-coded size",
)
def any_size_works(subject: Subject) -> None:
    """A single image, one that isn't square, and one of 8 pixels are transformed."""
    augmenter = _make(subject)
    for shape in ((1, 3, 16, 16), (3, 3, 16, 24), (3, 3, 24, 16), (2, 3, 8, 8)):
        images = torch.rand(shape, device=subject.device)
        views = _view(augmenter, images)
        require(views.shape == images.shape, f"{shape} became {tuple(views.shape)}")


@rule(
    "augmenters",
    why="a GPU idles while the host waits for a value.",
    cause="item(), a condition on pixels, or indexing with a mask that was computed from them",
)
def transform_never_waits(subject: Subject) -> None:
    """`transform` transfers nothing from the device to the host."""
    augmenter, images = _make(subject), _images(subject)
    draws = _draw(augmenter, len(images))
    augmenter.transform(images, draws)
    held = [*augmenter.parameters(), *augmenter.buffers()]
    with host_sync.forbidden(subject.device, [images, *held]):
        augmenter.transform(images, draws)


@rule(
    "augmenters",
    why="what an augmenter learns has to survive a stop; processes hand it on by pickle.",
    cause="a count or tensor that is no buffer, or a lambda",
)
def state_is_kept(subject: Subject) -> None:
    """Loaded from its state, copied or pickled, it draws and transforms as before."""
    augmenter, images = _make(subject), _images(subject)
    for step in range(3):
        _feed(augmenter, images, step)
        _view(augmenter, images)
    file = io.BytesIO()
    torch.save(augmenter.state_dict(), file)
    file.seek(0)
    loaded = _make(subject)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    twins = {
        "loaded from its state": loaded,
        "copied": copy.deepcopy(augmenter),
        "pickled": pickle.loads(pickle.dumps(augmenter)),
    }
    expected = _view(augmenter, images)
    for what, twin in twins.items():
        close = torch.allclose(_view(twin, images), expected, atol=1e-4)
        require(close, f"{what}, it makes other views")


@rule(
    "augmenters",
    why="on digits and letters a mirrored image shows another class.",
    cause="__init__ without the keyword flip, or without super().__init__(config, flip=flip)",
)
def flip_is_taken(subject: Subject) -> None:
    """It is made with `flip=False` and with `flip=True`, and remembers which."""
    for flip in (False, True):
        augmenter: Any = subject.plugin(subject.options(), flip=flip)
        if augmenter.flip is not flip:
            raise BrokenRuleError(f"made with flip={flip}, it has flip={augmenter.flip!r}")


def _make(subject: Subject) -> Augmenter:
    augmenter: Augmenter = subject.plugin(subject.options(), flip=True)
    return augmenter.to(subject.device)


def _images(subject: Subject, count: int = COUNT) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 3, 16, 16, generator=generator).to(subject.device)


def _draw(augmenter: Augmenter, count: int) -> AugmentationParams:
    return augmenter.draw(count, 16, 16, seeded_generator("contract"))


def _view(augmenter: Augmenter, images: Tensor) -> Tensor:
    count, _, height, width = images.shape
    draws = augmenter.draw(count, height, width, seeded_generator("contract"))
    return augmenter.transform(images, draws)


def _feed(augmenter: Augmenter, images: Tensor, step: int) -> None:
    """Show it answers to its views, as the engine does, if it wants that."""
    if not augmenter.wants_feedback:
        return
    generator = seeded_generator("probe", step)
    count, _, height, width = images.shape
    draws = augmenter.draw_probe(count, height, width, generator)
    augmenter.transform(images, draws)
    probs = torch.rand(len(images), 4, generator=generator).softmax(dim=-1)
    labels = torch.randint(4, (len(images),), generator=generator)
    augmenter.feedback(draws, probs.to(images.device), labels.to(images.device))
