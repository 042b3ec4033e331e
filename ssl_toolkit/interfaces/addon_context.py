"""The contexts of an algorithm with add-ons, and of the add-ons themselves."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ssl_toolkit.interfaces.context import Context, ForwardOutput
from ssl_toolkit.interfaces.results import check_tensor
from ssl_toolkit.interfaces.views import Batch

if TYPE_CHECKING:
    from ssl_toolkit.interfaces.addons import AddOn
    from ssl_toolkit.interfaces.algorithms import Algorithm


class Layer(NamedTuple):
    """An add-on and its context."""

    addon: AddOn
    ctx: Context


class PartContext(Context):
    """The context of the run for an add-on, or for an algorithm to which add-ons are applied.

    Args:
        run: Context of the run.
        path: Prefix of the names of the part's modules.
        base: The algorithm; None for an add-on.
        layers: Add-ons of the algorithm, the first one first.
        batch: The batch of the step; None outside of a step.
    """

    def __init__(
        self,
        run: Context,
        path: str,
        base: Algorithm | None = None,
        layers: tuple[Layer, ...] = (),
        batch: Batch | None = None,
    ) -> None:
        self.run = run
        self.path = path
        self.base = base
        self.layers = layers
        self.batch = batch
        for name in ("step", "max_steps", "processes", "generator", "class_shares", "pool_mask"):
            if hasattr(run, name):
                setattr(self, name, getattr(run, name))

    def forward(
        self, images: Tensor, *, update_statistics: bool = True, eval_mode: bool = False
    ) -> ForwardOutput:
        """As `Context.forward`, with adjusted logits."""
        output = self.run.forward(images, update_statistics=update_statistics, eval_mode=eval_mode)
        return self._adjusted(output)

    def head(self, features: Tensor) -> Tensor:
        """As `Context.head`, adjusted."""
        return self._adjusted(ForwardOutput(features, self.run.head(features))).logits

    def teacher_forward(self, images: Tensor, *, train_mode: bool = False) -> ForwardOutput:
        """As `Context.teacher_forward`, with adjusted logits."""
        with torch.no_grad():
            return self._adjusted(self.run.teacher_forward(images, train_mode=train_mode))

    def teacher(self, images: Tensor, *, train_mode: bool = False) -> Tensor:
        """Return the logits that the algorithm itself predicts of adjusted ones.

        Args:
            images: (N, 3, H, W) in [0, 1].
            train_mode: As in `teacher_forward`.
        """
        if self.base is None:
            return self.run.teacher(images, train_mode=train_mode)
        output = self.teacher_forward(images, train_mode=train_mode)
        return self.prediction(self.base.predict, output)

    def prediction(
        self, predict: Callable[[ForwardOutput], Tensor], output: ForwardOutput
    ) -> Tensor:
        """As `Context.prediction`."""
        return self.run.prediction(predict, output)

    def averaged(self, name: str) -> Callable[..., Any]:
        """As `Context.averaged`."""
        return self.run.averaged(self.path + name)

    def input_gradient(self, images: Tensor, loss: Callable[[ForwardOutput], Tensor]) -> Tensor:
        """As `Context.input_gradient`, with adjusted logits."""
        return self.run.input_gradient(images, lambda output: loss(self._adjusted(output)))

    def refine(self, probs: Tensor) -> Tensor:
        """Return the probabilities (U, C) that the add-ons refine, one after the other."""
        if self.batch is not None:
            for addon, ctx in self.layers:
                refined = addon.refine(probs, self.batch, ctx)
                probs = check_tensor(refined, probs.shape, f"refine of {_name(addon)}")
        return self.run.refine(probs)

    def weigh(self, probs: Tensor, mask: Tensor) -> Tensor:
        """Return the weights (U,) of the add-ons; each receives those of the one before."""
        if self.batch is not None:
            for addon, ctx in self.layers:
                weights = addon.weigh(probs, mask, self.batch, ctx)
                mask = check_tensor(weights, mask.shape, f"weigh of {_name(addon)}")
        return self.run.weigh(probs, mask)

    def weigh_labels(self, losses: Tensor) -> Tensor:
        """Return the losses of the labeled images (B,) with the weights of all add-ons."""
        if self.batch is not None:
            for addon, ctx in self.layers:
                weighted = addon.weigh_labels(losses, self.batch, ctx)
                losses = check_tensor(weighted, losses.shape, f"weigh_labels of {_name(addon)}")
        return self.run.weigh_labels(losses)

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """As `Context.all_reduce_sum`."""
        return self.run.all_reduce_sum(value)

    def all_gather(self, value: Tensor, dim: int = 0) -> Tensor:
        """As `Context.all_gather`."""
        return self.run.all_gather(value, dim)

    def local_shard(self, value: Tensor, dim: int = 0) -> Tensor:
        """As `Context.local_shard`."""
        return self.run.local_shard(value, dim)

    def _adjusted(self, output: ForwardOutput) -> ForwardOutput:
        logits = output.logits
        for addon, ctx in self.layers:
            adjusted = addon.adjust(logits, ctx)
            logits = check_tensor(adjusted, logits.shape, f"adjust of {_name(addon)}")
        return ForwardOutput(output.features, logits)


def contexts_of(
    ctx: Context, base: Algorithm, addon: AddOn, name: str, batch: Batch | None = None
) -> tuple[PartContext, PartContext]:
    """Return the contexts of an algorithm and of the add-on that is applied to it.

    Args:
        ctx: Context of both, of the run or of further add-ons.
        base: The algorithm.
        addon: The add-on.
        name: Name of the add-on.
        batch: The batch of the step.
    """
    outer = ctx if isinstance(ctx, PartContext) else None
    run, path, layers = (outer.run, outer.path, outer.layers) if outer else (ctx, "", ())
    own = PartContext(run, f"{path}addon.")
    # Other numbers than the algorithm's: with and without the add-on, it then draws the same.
    seed = run.generator.initial_seed() ^ zlib.crc32(name.encode())
    own.generator = torch.Generator().manual_seed(seed)
    return PartContext(run, f"{path}base.", base, (Layer(addon, own), *layers), batch), own


def _name(addon: AddOn) -> str:
    return f"add-on {type(addon).__name__}"
