"""Heads on the features of a backbone: a fixed transform, then a linear or neighbor predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FeatureTransform(nn.Module):
    """Map features to vectors of unit length, block by block.

    Block b of the features x, such as those of one stage of the network, becomes
    ``y = (sign(x_b)·|x_b|^power_b - shift_b) · scale_b``, and ``weight_b · y / |y|`` under
    `unit_blocks`. The blocks together, less the mean, are divided by their length.

    Args:
        mean: Mean (D,), subtracted after the blocks are transformed.
        sizes: Number of features of each block; None for a single block.
        powers: Power of each block, above 0; values below 1 reduce the skew of features after a
            ReLU.
        weights: Weight of each block.
        shift: Shift (D,), subtracted after the power; None for zeros.
        scale: Factors (D,); None for ones.
        unit_blocks: True to scale each block to the length of its weight.

    Raises:
        ValueError: The numbers of blocks, powers, weights and means differ.
    """

    mean: Tensor
    sizes: Tensor
    powers: Tensor
    weights: Tensor
    shift: Tensor
    scale: Tensor
    unit_blocks: Tensor

    def __init__(
        self,
        mean: Tensor,
        *,
        sizes: Sequence[int] | None = None,
        powers: Sequence[float] = (1.0,),
        weights: Sequence[float] = (1.0,),
        shift: Tensor | None = None,
        scale: Tensor | None = None,
        unit_blocks: bool = False,
    ) -> None:
        super().__init__()
        self._sizes = [len(mean)] if sizes is None else list(sizes)
        self._powers, self._weights = list(powers), list(weights)
        self._unit_blocks = unit_blocks
        if not len(self._sizes) == len(self._powers) == len(self._weights):
            raise ValueError("sizes, powers and weights need one value for each block")
        if sum(self._sizes) != len(mean):
            raise ValueError(f"blocks of {sum(self._sizes)} features, but {len(mean)} means")
        self.register_buffer("mean", mean.float().clone())
        shift = torch.zeros_like(mean) if shift is None else shift
        scale = torch.ones_like(mean) if scale is None else scale
        self.register_buffer("shift", shift.float().clone())
        self.register_buffer("scale", scale.float().clone())
        # These buffers are only stored: reading them in `forward` would wait for the device.
        self.register_buffer("sizes", torch.tensor(self._sizes))
        self.register_buffer("powers", torch.tensor(self._powers, dtype=torch.float32))
        self.register_buffer("weights", torch.tensor(self._weights, dtype=torch.float32))
        self.register_buffer("unit_blocks", torch.tensor(unit_blocks))
        self.in_features: int = len(mean)

    def blocks(self, features: Tensor) -> Tensor:
        """Return the transformed blocks (N, D), before the mean is subtracted."""
        parts = []
        for part, shift, scale, power, weight in zip(
            torch.split(features, self._sizes, dim=-1),
            torch.split(self.shift, self._sizes),
            torch.split(self.scale, self._sizes),
            self._powers,
            self._weights,
            strict=True,
        ):
            y = part if power == 1 else part.sign() * part.abs().pow(power)
            y = (y - shift) * scale
            parts.append(weight * F.normalize(y, dim=-1) if self._unit_blocks else y)
        return torch.cat(parts, dim=-1)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (N, D) to vectors (N, D) of Euclidean length 1."""
        return F.normalize(self.blocks(features) - self.mean, dim=-1)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Also load the settings of the transform, which `forward` reads as plain numbers."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._sizes = self.sizes.tolist()
        self._powers, self._weights = self.powers.tolist(), self.weights.tolist()
        self._unit_blocks = bool(self.unit_blocks)


class FeatureHead(nn.Module):
    """Map features to logits: a fixed transform, then a fitted predictor.

    Args:
        transform: Transform of the features.
        predictor: Module from (N, D) to (N, C): `torch.nn.Linear` or `Neighbors`.
    """

    def __init__(self, transform: FeatureTransform, predictor: nn.Linear | Neighbors) -> None:
        super().__init__()
        self.transform = transform
        self.predictor = predictor

    @classmethod
    def linear(cls, transform: FeatureTransform, weight: Tensor, bias: Tensor) -> FeatureHead:
        """Return a linear head; draws no random numbers.

        Args:
            transform: Transform of the features.
            weight: Weights (C, D).
            bias: Biases (C,).
        """
        return cls(transform, linear_layer(weight, bias))

    def forward(self, features: Tensor) -> Tensor:
        """Map features (N, D) to logits (N, C)."""
        logits: Tensor = self.predictor(self.transform(features))
        return logits


def linear_layer(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear layer with weights (C, D) and biases (C,); draws no random numbers."""
    classes, size = weight.shape
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, size, classes)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


class Neighbors(nn.Module):
    """The mean scores of the k nearest reference points, as log probabilities.

    The log of a softmax of the output is the output itself, so that the softmax of these logits
    is the vote of the neighbors: scikit-learn's ``KNeighborsClassifier`` for one-hot scores,
    its ``LabelSpreading(kernel="knn")`` for the label distributions of the pool.

    Args:
        points: Reference points (M, D), M at least k.
        scores: Scores (M, C) of the points, not negative.
        k: Number of neighbors that vote.
    """

    points: Tensor
    scores: Tensor
    neighbors: Tensor

    def __init__(self, points: Tensor, scores: Tensor, k: int) -> None:
        super().__init__()
        self.register_buffer("points", points.float().clone())
        self.register_buffer("scores", scores.float().clone())
        self.register_buffer("neighbors", torch.tensor(k))
        self.in_features: int = points.shape[1]
        self.out_features: int = scores.shape[1]
        self.k: int = k

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.k = int(self.neighbors)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (N, D) to logits (N, C)."""
        # In float64: differences of squares lose the digits that decide between neighbors.
        points, queries = self.points.double(), features.double()
        distances = points.square().sum(-1) - 2 * queries @ points.T
        nearest = distances.topk(self.k, largest=False).indices
        votes = self.scores[nearest].sum(dim=1)
        votes = votes / votes.sum(dim=-1, keepdim=True).clamp_min(1e-12)
        return votes.clamp_min(1e-12).log()


def head_for(state: Mapping[str, Tensor]) -> FeatureHead | None:
    """Return a head of the form of a state dict, without its values; None for another module.

    Args:
        state: State dict of a head, its keys without a prefix.
    """
    if "transform.mean" not in state:
        return None
    predictor: nn.Linear | Neighbors
    if "predictor.points" in state:
        points, scores = state["predictor.points"], state["predictor.scores"]
        predictor = Neighbors(points, scores, int(state["predictor.neighbors"]))
    else:
        classes, size = state["predictor.weight"].shape
        predictor = nn.Linear(size, classes)
    sizes, powers, weights = (
        state[f"transform.{name}"].tolist() for name in ("sizes", "powers", "weights")
    )
    mean = state["transform.mean"]
    transform = FeatureTransform(mean, sizes=sizes, powers=powers, weights=weights)
    return FeatureHead(transform, predictor)
