"""Algorithms with an add-on: generated classes that the engine treats like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from itertools import tee
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import create_model
from torch import Tensor

from ssl_toolkit.config.merging import deep
from ssl_toolkit.config.options import Options, option
from ssl_toolkit.errors import PluginError
from ssl_toolkit.interfaces.addon_context import contexts_of
from ssl_toolkit.interfaces.algorithms import Algorithm, FeatureAlgorithm, Loss, StepOutput
from ssl_toolkit.interfaces.augmenters import Augmenter
from ssl_toolkit.interfaces.context import Context, ForwardOutput
from ssl_toolkit.interfaces.tasks import TaskInfo
from ssl_toolkit.interfaces.views import Batch, Views

if TYPE_CHECKING:
    from ssl_toolkit.interfaces.addons import AddOn

Scan = Callable[[Iterator[tuple[Tensor, Tensor, Tensor]], Iterator[tuple[Tensor, Tensor]]], None]
HOOKS = ("refine", "weigh", "weigh_labels")
"""Methods of add-ons that an algorithm calls itself, through its context."""


class Composition(Algorithm):
    """An algorithm with an add-on."""

    base_class: ClassVar[type[Algorithm]]
    addon_class: ClassVar[type[AddOn]]
    addon_name: ClassVar[str]

    def __init__(self, config: Options, task: TaskInfo) -> None:
        super().__init__(config, task)
        self.base: Algorithm = self.base_class(config, task)
        self.addon: AddOn = self.addon_class(getattr(config, self.addon_name), task)

    def views(self) -> Views:
        """Return the views of the algorithm as the add-on extends them.

        Raises:
            PluginError: The add-on requests fewer or others.
        """
        own = self.base.views()
        views = self.addon.views(own)
        what = f"views of add-on {self.addon_name!r}"
        if not isinstance(views, Views):
            raise PluginError(f"{what} returned {views!r} instead of Views(...)")
        if own.needs_unlabeled and views.unlabeled_ratio != own.unlabeled_ratio:
            raise PluginError(f"{what} changes unlabeled_ratio, which the algorithm defines")
        for kind, view in own.kinds.items():
            other = views.kinds.get(kind)
            if (
                other is None
                or other.count < view.count
                or replace(view, count=other.count) != other
            ):
                raise PluginError(f"{what} changes {kind}: it must add views, and keep the others")
        return views

    def augmenters(self) -> Mapping[str, Augmenter]:
        """Return the augmenters of the algorithm."""
        return self.base.augmenters()

    def step(self, batch: Batch, ctx: Context) -> StepOutput:
        """Return the losses of the algorithm and those of the add-on.

        Raises:
            PluginError: The add-on returned something else, or a loss that the algorithm has.
        """
        inner, own = contexts_of(ctx, self.base, self.addon, self.addon_name, batch)
        output = self.base.step(self._of_base(batch), inner)
        if not isinstance(output, StepOutput):
            return output  # the engine reports it
        losses = self.addon.losses(batch, own, output)
        named = losses if isinstance(losses, Mapping) else {"": losses}
        if wrong := [type(one).__name__ for one in named.values() if not isinstance(one, Loss)]:
            raise PluginError(
                f"losses of add-on {self.addon_name!r} returned {wrong[0]}, not a dict of Loss"
            )
        if clash := sorted(losses.keys() & output.losses.keys()):
            raise PluginError(
                f"losses of add-on {self.addon_name!r} returned {clash[0]!r}, which is a loss of "
                "the algorithm; choose another name"
            )
        return replace(output, losses={**output.losses, **losses}) if losses else output

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        """Number of views of each kind that only the add-on extends, as the algorithm has them."""
        every = self.views().kinds
        kinds = self.base.views().kinds.items()
        return {name: view.count for name, view in kinds if view.count != every[name].count}

    def _of_base(self, batch: Batch) -> Batch:
        """Return the batch with as many views as the algorithm requests."""
        if not self._counts:
            return batch
        fields = {k: getattr(batch, k)[:n] for k, n in self._counts.items() if k in vars(batch)}
        extra = {k: batch.extra[k][:n] for k, n in self._counts.items() if k in batch.extra}
        return replace(batch, **fields, extra={**batch.extra, **extra})

    def __reduce__(self) -> tuple[Any, ...]:
        return _instance_of, (parts_of(type(self)),), self.__dict__

    @property
    def lr_factors(self) -> Mapping[str, float]:
        """Factors of algorithm and add-on."""
        parts = (("base", self.base.lr_factors), ("addon", self.addon.lr_factors))
        return {f"{part}.{name}": one for part, of in parts for name, one in of.items()}

    @property
    def scan_every(self) -> int:
        """Return the largest interval that is a divisor of those of both."""
        return math.gcd(self.base.scan_every, self.addon.scan_every)

    def scan(
        self,
        labeled: Iterator[tuple[Tensor, Tensor, Tensor]],
        unlabeled: Iterator[tuple[Tensor, Tensor]],
        ctx: Context,
    ) -> None:
        """Call those of algorithm and add-on that are due.

        If several read the images, they are kept in memory until the last one has read them.

        Args:
            labeled: Batches of images (n, 3, H, W), as for `Algorithm.scan`.
            unlabeled: Batches of images.
            ctx: As for `step`.
        """
        due = due_scans(self, ctx)
        if len(due) == 1:
            due[0](labeled, unlabeled)
            return
        images, pools = list(tee(labeled, len(due))), list(tee(unlabeled, len(due)))
        for scan in due:
            scan(images.pop(), pools.pop())  # dropped here, so that nothing is kept for them


Parts = tuple[type[Algorithm], list[tuple[Any, str]]]
"""An algorithm, and the class and name of each of its add-ons."""


def parts_of(kind: type[Algorithm]) -> Parts:
    """Return the parts of an algorithm with or without add-ons."""
    if not issubclass(kind, Composition):
        return kind, []
    base, addons = parts_of(kind.base_class)
    return base, [*addons, (kind.addon_class, kind.addon_name)]


def _composed(parts: Parts) -> type[Algorithm]:
    kind, addons = parts
    for addon, name in addons:
        kind = compose(kind, addon, name)
    return kind


# Pickle doesn't find generated classes by name.
def _options_of(parts: Parts, values: Mapping[str, Any]) -> Options:
    return _composed(parts).Config(**values)


def _instance_of(parts: Parts) -> Algorithm:
    kind = _composed(parts)
    instance: Algorithm = kind.__new__(kind)
    return instance


def due_scans(algorithm: Algorithm, ctx: Context) -> list[Scan]:
    """Return the calls of `scan` that are due, of an algorithm or of its parts.

    Args:
        algorithm: Algorithm with or without add-ons.
        ctx: Context of the step.
    """
    if isinstance(algorithm, Composition):
        base, addon = algorithm.base, algorithm.addon
        inner, own = contexts_of(ctx, base, addon, algorithm.addon_name)
        return [*due_scans(base, inner), *_due(addon, own)]
    return _due(algorithm, ctx)


def _due(part: Algorithm | AddOn, ctx: Context) -> list[Scan]:
    every = part.scan_every
    if not every or ctx.step % every:
        return []
    return [lambda labeled, unlabeled: part.scan(labeled, unlabeled, ctx)]


@cache
def compose(base: type[Algorithm], addon: type[AddOn], name: str) -> type[Algorithm]:
    """Return the class of an algorithm with an add-on.

    Raises:
        PluginError: They don't fit each other.
    """
    _check(base, addon, name)
    of_addon: Any = addon.Config
    fields: Any = {name: (of_addon, option(of_addon(), help="options of the add-on"))}
    config = create_model(
        f"{base.Config.__name__}With{addon.__name__}",
        __base__=base.Config,
        __doc__=base.Config.__doc__,
        **fields,
    )
    config.for_pretrained = deep(base.Config.for_pretrained, {name: of_addon.for_pretrained})
    attributes: dict[str, Any] = {
        "__doc__": f"{_summary(base)} With: {_summary(addon)}",
        "__module__": base.__module__,
        "base_class": base,
        "addon_class": addon,
        "addon_name": name,
        "Config": config,
        "metrics": (*base.metrics, *addon.metrics),
        **{
            names: (
                *(f"base.{name}" for name in getattr(base, names)),
                *(f"addon.{name}" for name in getattr(addon, names)),
            )
            for names in ("averaged_modules", "pool_statistics")
        },
        **{key: getattr(base, key) for key in INHERITED},
    }
    if base.predict is not Algorithm.predict or addon.overrides("predict"):
        attributes["predict"] = _predict
    if base.stranger_scores is not Algorithm.stranger_scores:
        attributes["stranger_scores"] = _stranger_scores
    composed: type[Algorithm] = type(
        f"{base.__name__}With{addon.__name__}", (Composition,), attributes
    )
    parts = parts_of(composed)
    config.__reduce__ = lambda self: (_options_of, (parts, self.model_dump()))  # type: ignore
    return composed


INHERITED = (
    "family",
    "uses_hidden_labels",
    "run_defaults",
    "profiles",
    "mixes_images",
    "addon_hooks",
)
"""Facts that an algorithm with an add-on shares with the algorithm."""


def _predict(self: Composition, output: ForwardOutput) -> Tensor:
    """Return the logits (N, C) of the add-on."""
    return self.addon.predict(output, self.base.predict(output))


def _stranger_scores(self: Composition, output: ForwardOutput) -> Tensor | None:
    """Return the scores (N,) of the algorithm for the logits of the add-on."""
    return self.base.stranger_scores(output)


def _check(base: type[Algorithm], addon: type[AddOn], name: str) -> None:
    if issubclass(base, FeatureAlgorithm):
        raise PluginError(
            f"add-on {name!r} can't be applied to {base.__name__}: it changes training steps, and "
            "this algorithm fits a head to features without any"
        )
    if name in base.Config.model_fields:
        raise PluginError(
            f"add-on {name!r} can't be applied to {base.__name__}: it is applied already, or an "
            "option of the algorithm has this name"
        )
    if missing := [h for h in HOOKS if addon.overrides(h) and h not in base.addon_hooks]:
        purpose = {
            "refine": "changes pseudo labels",
            "weigh": "weights pseudo labels",
            "weigh_labels": "weights labeled images",
        }
        raise PluginError(
            f"add-on {name!r} can't be applied to {base.__name__}: it {purpose[missing[0]]}, and "
            f"this algorithm doesn't call Context.{missing[0]} (see Algorithm.addon_hooks)"
        )


def _summary(plugin: type) -> str:
    return (plugin.__doc__ or plugin.__name__).strip().partition("\n")[0]
