"""Mathematical functions of tensors that algorithms share.

N rows, C classes, K views. Lower precisions are raised to float32 and float64 stays float64, also
under autocast. Rows of probabilities sum to 1 and may contain zeros. Targets are constants: no
gradient flows into them. No value or gradient is NaN for logits with absolute values up to 1e38.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ssl_toolkit.torch_workarounds import sample_dirichlet

__all__ = [
    "align_distribution",
    "at_least_float32",
    "average_and_sharpen",
    "cosine_factor",
    "follow_shares",
    "gaussian_rampup",
    "interleave",
    "interleave_rows",
    "interleaved_forward",
    "l2_consistency",
    "linear_rampup",
    "mixup",
    "rampup",
    "sample_beta",
    "sharpen",
    "soft_cross_entropy",
]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or unchanged if it is float64.

    Args:
        tensor: (...,).

    Returns:
        (...,).
    """
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """Raise probabilities to the power 1 / temperature and normalize each row.

    Works on logarithms, so that no row underflows to 0 / 0 at a low temperature. Zeros stay
    exactly 0 and receive gradient 0; everything else is differentiable.

    Args:
        probs: (..., C).
        temperature: Above 0; 1 changes nothing, values near 0 make the rows one-hot.

    Returns:
        (..., C).

    Raises:
        ValueError: The temperature is not above 0.

    Source: Berthelot et al., MixMatch (NeurIPS 2019, arXiv:1905.02249), eq. 7.

    >>> sharpen(torch.tensor([0.8, 0.2]), 0.5)
    tensor([0.9412, 0.0588])
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    probs = at_least_float32(probs)
    zero = probs <= 0
    # The zeros are replaced before the logarithm: a gradient of 1 / 0 could not be masked after it.
    log_probs = probs.masked_fill(zero, 1).log().masked_fill(zero, -math.inf)
    # With the largest at 0, dividing by a tiny temperature can't turn a whole row into -inf.
    log_probs = log_probs - log_probs.amax(dim=-1, keepdim=True).detach()
    temperature = max(temperature, torch.finfo(probs.dtype).tiny)
    return (log_probs / temperature).softmax(dim=-1)


def average_and_sharpen(
    logits: Tensor, temperature: float, refine: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Average the probabilities of the views of each image, and sharpen them; no gradient.

    Args:
        logits: (K, N, C), the views first.
        temperature: As for `sharpen`.
        refine: Maps the averages (N, C) to those to sharpen, such as `Context.refine`.

    Returns:
        (N, C) probabilities.

    Raises:
        ValueError: Wrong shape, or the temperature is not above 0.

    Source: MixMatch, eqs. 6-7; SimPLE (CVPR 2021), algorithm 1.
    """
    if logits.ndim != 3:
        raise ValueError(f"logits must be (views, N, classes), got {tuple(logits.shape)}")
    mean = at_least_float32(logits.detach()).softmax(dim=-1).mean(dim=0)
    return sharpen(mean if refine is None else refine(mean), temperature)


def align_distribution(probs: Tensor, shares: Tensor, mean: Tensor, exponent: float) -> Tensor:
    """Move predictions toward expected class shares; no gradient.

    p_c · (shares_c / mean_c)^exponent, each row normalized: classes that are predicted too often
    become less likely. Zeros stay 0.

    Args:
        probs: (N, C) predictions.
        shares: (C,) expected mean of the predictions.
        mean: (C,) actual mean of the predictions.
        exponent: Strength; 0 changes nothing, 1 is the form of the paper.

    Returns:
        (N, C) probabilities.

    Source: Berthelot et al., ReMixMatch (ICLR 2020, arXiv:1911.09785), section 3.1, exponent 1.

    >>> even = torch.tensor([0.5, 0.5])
    >>> align_distribution(even[None], torch.tensor([0.2, 0.8]), even, 1)
    tensor([[0.2000, 0.8000]])
    """
    probs, shares, mean = (at_least_float32(t.detach()) for t in (probs, shares, mean))
    tiny = torch.finfo(probs.dtype).tiny  # a share of 0 would leave some rows no class at all
    ratio = shares.clamp_min(tiny).log() - mean.clamp_min(tiny).log()
    return (probs.log() + exponent * ratio).softmax(dim=-1)


def follow_shares(
    probs: Tensor, exponent: float, rounds: int = 20, counts: Tensor | None = None
) -> Tensor:
    """Adjust predictions to the class shares that they imply themselves (damped EM).

    In turn, s_c = (sum_i q_ic + 5 r_c) / (N + 5 C) and q_ic = p_ic · (C · s_c / r_c)^exponent with
    rows normalized, where r_c is C times the share of class c of the labels: 1 if they are equal.
    Five pseudo counts per class prevent a rare class from vanishing.

    Args:
        probs: (N, C) predictions of a classifier that was fitted to the labels.
        exponent: Strength; 0 changes nothing, 1 is plain EM, values between are damped.
        rounds: Number of EM iterations.
        counts: (C,) number of labels per class, None if equal; a class without labels gets 0.

    Returns:
        (N, C) probabilities; their mean over the rows estimates the class shares.

    Source: Saerens et al., Adjusting the Outputs of a Classifier to New a Priori Probabilities
    (Neural Computation 2002), section 2.2, exponent 1 and no pseudo counts.
    """
    classes = probs.shape[1]
    prior = torch.ones(classes, dtype=probs.dtype, device=probs.device)
    if counts is not None:
        prior = counts.to(prior) * classes / counts.sum()
    weights = torch.ones_like(prior)
    adjusted = probs
    for _ in range(rounds if exponent and len(probs) else 0):
        adjusted = probs * weights
        adjusted = adjusted / adjusted.sum(dim=-1, keepdim=True)
        shares = (adjusted.sum(dim=0) + 5 * prior) / (len(probs) + 5 * classes)
        weights = torch.where(prior > 0, classes * shares / prior, 0).pow(exponent)
    return adjusted


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row with soft targets: -sum_c target_c · log p_c.

    Args:
        logits: (N, C); carries the gradient.
        targets: (N, C) probabilities.

    Returns:
        (N,), not reduced.

    >>> soft_cross_entropy(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
    tensor([0.6931])
    """
    log_probs = at_least_float32(logits).log_softmax(dim=-1)
    return -(at_least_float32(targets.detach()) * log_probs).sum(dim=-1)


def l2_consistency(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean squared difference of predicted and target probabilities (Brier score).

    The mean is over all N · C entries; masked-out rows count as 0 and stay in the divisor, so that
    an empty mask gives 0 with an exactly zero gradient.

    Args:
        logits: (N, C); carries the gradient.
        targets: (N, C) probabilities.
        mask: (N,) bool, True for rows that count, or their weights; None for all.

    Returns:
        0-dim.

    Source: MixMatch, eq. 4 (no mask); SimPLE (CVPR 2021), the unsupervised loss L_U.
    """
    targets = at_least_float32(targets.detach())
    squared = (at_least_float32(logits).softmax(dim=-1) - targets).square()
    if mask is not None:
        squared = squared * mask[:, None]
    return squared.sum() / max(squared.numel(), 1)


def mixup(
    images: Tensor, targets: Tensor, lam: float | Tensor, permutation: Tensor
) -> tuple[Tensor, Tensor]:
    """Mix each image, and its target, with another one of the batch.

    l = max(lam, 1 - lam); image_i becomes l · image_i + (1 - l) · image_permutation[i], so that
    it stays closer to itself than to its partner. Draws no random numbers.

    Args:
        images: (N, ...); not changed.
        targets: (N, C) probabilities; not changed.
        lam: In [0, 1]; a number, 0-dim or (1,) for all images, or (N,), one per image.
            The papers draw it from Beta(alpha, alpha).
        permutation: (N,) int64, on the device of the images.

    Returns:
        Mixed images (N, ...) and mixed targets (N, C).

    Source: MixMatch, eqs. 8-11.

    >>> mixup(torch.tensor([[0.0], [1.0]]), torch.eye(2), 0.25, torch.tensor([1, 0]))[0]
    tensor([[0.2500],
            [0.7500]])
    """

    def mix(values: Tensor) -> Tensor:
        values = at_least_float32(values)
        share: float | Tensor
        if isinstance(lam, Tensor):
            share = torch.maximum(lam, 1 - lam).to(values)
            share = share.reshape(-1, *[1] * (values.ndim - 1)) if share.ndim else share
        else:
            share = max(lam, 1 - lam)
        return share * values + (1 - share) * values[permutation]

    return mix(images), mix(targets)


def sample_beta(alpha: float, count: int, generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha), such as the shares of a `mixup`.

    Args:
        alpha: Above 0.
        count: Number of draws.
        generator: On the CPU.

    Returns:
        (count,) float32 in [0, 1], on the CPU.

    Source: MixMatch, eq. 8.
    """
    # A Beta is the first component of a Dirichlet of two; in double precision, because small
    # alphas underflow.
    alphas = torch.full((count, 2), alpha, dtype=torch.float64)
    return sample_dirichlet(alphas, generator)[:, 0].float()


def interleave(batches: Sequence[Tensor]) -> list[Tensor]:
    """Swap slices between batches, so that each one becomes a mixture of all (MixMatch).

    All n batches are cut at the same places into n nearly equal groups, the longer ones last;
    group i of the first batch changes places with group i of batch i. A second call restores the
    batches. The purpose is that separate forward passes see similar BatchNorm statistics.

    Args:
        batches: The n tensors (B, ...), or sequences of B numbers.

    Returns:
        n new tensors (B, ...).

    Raises:
        ValueError: The lengths differ.

    >>> interleave([torch.tensor([0, 1]), torch.tensor([10, 11])])
    [tensor([ 0, 11]), tensor([10,  1])]
    """
    tensors = [torch.as_tensor(batch) for batch in batches]
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) > 1:
        raise ValueError(f"batches must have one length, got {sorted(lengths)}")
    if not tensors:
        return []
    count, length = len(tensors), lengths.pop()
    sizes = [length // count + (i >= count - length % count) for i in range(count)]
    groups = [list(torch.split(tensor, sizes)) for tensor in tensors]
    for i in range(1, count):
        groups[0][i], groups[i][i] = groups[i][i], groups[0][i]
    return [torch.cat(pieces) for pieces in groups]


def interleave_rows(x: Tensor, size: int) -> Tensor:
    """Interleave rows as FixMatch does: view n rows of `size`, transpose, flatten.

    ``interleave_rows(y, len(y) // size)`` undoes it.

    Args:
        x: (n · size, ...).
        size: At least 1.

    Returns:
        A new tensor of the same shape.

    Raises:
        ValueError: The length is not a multiple of the size.

    >>> interleave_rows(torch.arange(6), 3)
    tensor([0, 3, 1, 4, 2, 5])
    """
    if size < 1 or len(x) % size:
        raise ValueError(f"{len(x)} rows can't be dealt out in rows of {size}")
    return x.reshape(-1, size, *x.shape[1:]).transpose(0, 1).flatten(0, 1)


def interleaved_forward(model: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """Run one forward pass per batch of `size`, each a mixture of all batches (see `interleave`).

    Args:
        model: Function of images that returns logits, such as `Context.model`.
        images: (n · size, ...).
        size: Images in one forward pass.

    Returns:
        (n · size, C) logits, in the order of the images.

    Raises:
        ValueError: The length is not a multiple of the size.

    Source: MixMatch's code.

    >>> interleaved_forward(lambda batch: 10 * batch, torch.arange(4), 2)
    tensor([ 0, 10, 20, 30])
    """
    mixed = interleave(torch.split(images, size))
    return torch.cat(interleave([model(batch) for batch in mixed]))


def linear_rampup(step: float, length: float) -> float:
    """Return a weight in [0, 1] that rises linearly: min(step / length, 1), and 1 for length 0.

    Args:
        step: Number of updates already made; the first update has weight 0 unless `length` is 0.
        length: In the unit of `step`; 0 for no ramp.
    """
    return min(step / length, 1.0) if length > 0 else 1.0


def gaussian_rampup(step: float, length: float) -> float:
    """Return a weight that rises as exp(-5 (1 - t)²), with step and length as in `linear_rampup`.

    Source: Laine and Aila, Temporal Ensembling (ICLR 2017, arXiv:1610.02242), section 2.1.
    """
    return math.exp(-5 * (1 - linear_rampup(step, length)) ** 2)


def rampup(step: int, max_steps: int, fraction: float, steps: int | None = None) -> float:
    """Return a weight in [0, 1] that rises linearly over part of a run; see `linear_rampup`.

    Args:
        step: Number of updates already made.
        max_steps: Length of the run.
        fraction: Length of the ramp as a share of the run; 0 for no ramp.
        steps: The same in steps, which takes precedence; None to use the fraction.

    >>> rampup(15, 100, 0.3), rampup(15, 100, 0.3, 60)
    (0.5, 0.25)
    """
    return linear_rampup(step, fraction * max_steps if steps is None else steps)


def cosine_factor(
    step: int, total_steps: int, warmup_steps: int = 0, cycles: float = 7 / 16
) -> float:
    """Return a factor in [0, 1] of the learning rate: linear warm-up, then part of a cosine.

    step / warmup_steps before the warm-up ends, then max(0, cos(pi · cycles · t)) with t going
    from 0 to 1 over the remaining steps and staying there.

    Args:
        step: Number of updates already made; the first update of a warm-up has factor 0.
        total_steps: Length of the run, warm-up included.
        warmup_steps: 0 for none.
        cycles: Half turns of the cosine; 7/16 as in FixMatch (NeurIPS 2020), section 2.4, ends at
            0.195 of the full rate.

    >>> round(cosine_factor(100, 100), 3)
    0.195
    """
    if step < warmup_steps:
        return step / warmup_steps
    length = max(total_steps - warmup_steps, 1)
    return max(0.0, math.cos(math.pi * cycles * min(step - warmup_steps, length) / length))
