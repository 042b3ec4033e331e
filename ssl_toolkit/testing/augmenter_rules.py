"""Rules for augmenters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssl_toolkit.config.images import PixelFormat
from ssl_toolkit.engine.random_orders import seeded_generator
from ssl_toolkit.interfaces import AugmentationParams, Augmenter
from ssl_toolkit.testing import host_sync
from ssl_toolkit.testing.assertions import (
    differing,
    listed,
    no_global_draws,
    replicas,
    unmodified,
)
from ssl_toolkit.testing.rules import require
from ssl_toolkit.testing.subject import Subject

COUNT = 12
"""Images per batch, enough for operations with a small probability."""


def draws_rows_on_cpu(subject: Subject) -> None:
    """`draw` returns CPU tensors with one row per image, with the same names for any count.

    Why: the engine concatenates the parameters of several views on the host.
    Cause: one draw for the whole batch, or a tensor that was moved to a device.
    """
    augmenter = _build(subject)
    names = []
    for count in (1, 5):
        params = _draw(augmenter, count)
        names.append(sorted(params))
        for name, value in params.items():
            on_cpu = isinstance(value, Tensor) and value.device.type == "cpu"
            require(on_cpu, f"{name!r} is not a CPU tensor")
            rows = tuple(value.shape[:1])
            require(rows == (count,), f"{name!r} has {rows} rows for {count} images")
    require(names[0] == names[1], f"names for 1 image are {names[0]}, for 5 images {names[1]}")


def draws_reproducibly(subject: Subject) -> None:
    """Two augmenters draw equal parameters from generators with the same seed.

    Why: resumed runs, and all algorithms in a comparison, must see the same views.
    Cause: numbers that don't come from the generator.
    """
    wrong = differing(*(_draw(_build(subject), COUNT) for _ in range(2)))
    require(not wrong, f"{listed(wrong)} differ for one seed")


def draws_prefix_for_smaller_batch(subject: Subject) -> None:
    """With one seed, the rows of a smaller batch are the first rows of a larger one.

    Why: compared algorithms with different batch sizes share the parameters of the first images.
    Cause: two tensors drawn in turn, or randn; take the columns of one torch.rand(count, k).
    """
    augmenter = _build(subject)
    # torch fills tensors of 16 k numbers in another order; avoid such sizes.
    large = augmenter.draw(40, 15, 13, seeded_generator("contract"))
    for count in (1, 2, 5, 17):
        small = augmenter.draw(count, 15, 13, seeded_generator("contract"))
        prefix = {name: value[:count] for name, value in large.items() if name in small}
        wrong = differing(prefix, {name: small[name] for name in prefix})
        require(not wrong, f"{listed(wrong)} for {count} images are not the first rows of 40")


def transforms_deterministically(subject: Subject) -> None:
    """`transform` returns the same views for the same images and parameters.

    Why: parameters are replayed, and transforms run on any device.
    Cause: a random number drawn in transform; draw it in draw.
    """
    augmenter, images = _build(subject), _images(subject)
    params = _draw(augmenter, len(images))
    first, second = (augmenter.transform(images.clone(), params) for _ in range(2))
    require(torch.equal(first, second), "a second transform returns other views")


def uses_no_global_generator(subject: Subject) -> None:
    """`draw` and `transform` draw nothing from global generators.

    Why: the model draws from the global generators, so other draws change those of the model.
    Cause: random.random(), numpy.random, or a torch function without generator=generator.
    """
    augmenter, images = _build(subject), _images(subject)
    _augment(augmenter, images)  # imports of the first call may draw
    with no_global_draws("it"):
        _augment(augmenter, images)


def preserves_shape_and_dtype(subject: Subject) -> None:
    """Views have the shape, dtype and device of the images, in float32 and float64.

    Why: views are stacked into a batch.
    Cause: a crop without resizing, or a conversion to float32.
    """
    augmenter = _build(subject)
    for dtype in (torch.float32, torch.float64):
        images = _images(subject).to(dtype)
        views = _augment(augmenter, images)
        before, after = (f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in (images, views))
        require(before == after, f"{before} became {after}")


def returns_valid_range(subject: Subject) -> None:
    """Views are finite and in [0, 1], also those of black, white and gray images.

    Why: the classifier normalizes images in [0, 1].
    Cause: a missing clamp, or a division by a standard deviation of 0.
    """
    augmenter = _build(subject)
    levels = {"black": 0.0, "white": 1.0, "gray": 0.5}
    batches = {name: torch.full_like(_images(subject), level) for name, level in levels.items()}
    for name, images in {"random": _images(subject, 32), **batches}.items():
        views = _augment(augmenter, images)
        require(views.isfinite().all(), f"a view of {name} images is inf or nan")
        low, high = views.amin().item(), views.amax().item()
        require(low >= 0 and high <= 1, f"views of {name} images range from {low:g} to {high:g}")


def does_not_modify_inputs(subject: Subject) -> None:
    """`transform` modifies neither the images nor the parameters.

    Why: several views are created from the same images.
    Cause: an in-place operation on the images.
    """
    augmenter, images = _build(subject), _images(subject)
    params = _draw(augmenter, len(images))
    with unmodified({"images": images, **params}):
        augmenter.transform(images, params)


def transforms_images_independently(subject: Subject) -> None:
    """The view of an image does not depend on the other images of the batch.

    Why: one call of transform computes all views of a step.
    Cause: a mean over the batch, or parameters in another order than the images.
    """
    augmenter, images = _build(subject), _images(subject)
    params = _draw(augmenter, len(images))
    views = augmenter.transform(images, params)
    for row in range(0, len(images), 3):
        alone = {name: value[row : row + 1] for name, value in params.items()}
        view = augmenter.transform(images[row : row + 1], alone)
        distance = (view[0] - views[row]).abs().amax().item()
        require(distance < 1e-4, f"image {row} alone differs by up to {distance:g}")


def supports_any_image_size(subject: Subject) -> None:
    """A single image, non-square images and images of 8 pixels are transformed.

    Why: data sets have different image sizes.
    Cause: one side that is used for both, or a hard-coded size.
    """
    augmenter = _build(subject)
    for shape in ((1, 3, 16, 16), (3, 3, 16, 24), (3, 3, 24, 16), (2, 3, 8, 8)):
        views = _augment(augmenter, torch.rand(shape, device=subject.device))
        require(views.shape == shape, f"{shape} became {tuple(views.shape)}")


def supports_declared_channels(subject: Subject) -> None:
    """Images with each number of channels in `channels` keep shape and range, of 8 and 16 bits.

    Why: a run trusts the declaration, and refuses images with other channels before it starts.
    Cause: a conversion to gray or HSV, which needs RGB; leave it out in `omit_operations`.
    """
    declared = subject.plugin.channels
    for channels in sorted({1, 2, 5} if declared is None else declared - {3}):
        for bits in (8, 16):
            augmenter = _build(subject)
            omitted = augmenter.omit_operations(PixelFormat(channels, bits))
            valid = isinstance(omitted, tuple) and all(isinstance(name, str) for name in omitted)
            require(valid, f"omit_operations returned {omitted!r}, not a tuple of names")
            images = torch.rand(COUNT, channels, 16, 16, device=subject.device)
            views = _augment(augmenter, images)
            require(views.shape == images.shape, f"{channels} channels became {views.shape[1]}")
            inside = bool((views.isfinite() & (views >= 0) & (views <= 1)).all())
            require(inside, f"views of {channels} channels are outside [0, 1]")


def avoids_host_sync(subject: Subject) -> None:
    """`transform` transfers nothing from the device to the host.

    Why: the GPU idles while the host waits for a value.
    Cause: item(), a condition on pixels, or indexing with a mask.
    """
    augmenter, images = _build(subject), _images(subject)
    params = _draw(augmenter, len(images))
    augmenter.transform(images, params)
    state = [*augmenter.parameters(), *augmenter.buffers()]
    with host_sync.forbid(subject.device, [images, *state]):
        augmenter.transform(images, params)


def restores_state(subject: Subject) -> None:
    """Restored from its state dict, copied or unpickled, it draws and transforms as before.

    Why: checkpoints store the state of an augmenter that learns, and other processes a pickle.
    Cause: a counter or tensor that is not a buffer, or a lambda.
    """
    augmenter, images = _build(subject), _images(subject)
    for step in range(3):
        _send_feedback(augmenter, images, step)
        _augment(augmenter, images)
    replicated = replicas(augmenter, lambda: _build(subject))
    expected = _augment(augmenter, images)
    for origin, replica in replicated.items():
        equal = torch.allclose(_augment(replica, images), expected, atol=1e-4)
        require(equal, f"{origin}, it returns other views")


def accepts_flip(subject: Subject) -> None:
    """`__init__` accepts `flip` and stores it as an attribute.

    Why: a mirrored digit or letter may belong to another class.
    Cause: __init__ without the keyword flip, or without super().__init__(config, flip=flip).
    """
    for flip in (False, True):
        augmenter: Any = subject.plugin(subject.options(), flip=flip)
        require(augmenter.flip is flip, f"with flip={flip}, the attribute is {augmenter.flip!r}")


def _build(subject: Subject) -> Augmenter:
    augmenter: Augmenter = subject.plugin(subject.options(), flip=True)
    return augmenter.to(subject.device)


def _images(subject: Subject, count: int = COUNT) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 3, 16, 16, generator=generator).to(subject.device)


def _draw(augmenter: Augmenter, count: int) -> AugmentationParams:
    return augmenter.draw(count, 16, 16, seeded_generator("contract"))


def _augment(augmenter: Augmenter, images: Tensor) -> Tensor:
    count, _, height, width = images.shape
    params = augmenter.draw(count, height, width, seeded_generator("contract"))
    return augmenter.transform(images, params)


def _send_feedback(augmenter: Augmenter, images: Tensor, step: int) -> None:
    """Report predictions for its views, as the engine does."""
    if not augmenter.wants_feedback:
        return
    generator = seeded_generator("probe", step)
    count, _, height, width = images.shape
    params = augmenter.draw_probe(count, height, width, generator)
    augmenter.transform(images, params)
    probs = torch.rand(len(images), 4, generator=generator).softmax(dim=-1)
    labels = torch.randint(4, (len(images),), generator=generator)
    augmenter.feedback(params, probs.to(images.device), labels.to(images.device))
