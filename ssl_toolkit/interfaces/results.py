"""Check what the methods of plugins return."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssl_toolkit.errors import PluginError


def check_tensor(
    result: object, shape: Sequence[int], of: str, *, what: str = "", like: Tensor | None = None
) -> Tensor:
    """Return the result of a plugin's method; refuse all but a tensor of a shape.

    Args:
        result: What the method returned.
        shape: Required shape, such as (N, C).
        of: The method and its plugin, for the message.
        what: What the tensor contains, for the message.
        like: Tensor whose dtype and device are required; None for any.

    Raises:
        PluginError: One line that names method and plugin.
    """
    wanted = f"{what} {tuple(shape)}".strip()
    if not isinstance(result, Tensor):
        raise PluginError(f"{of} returned {type(result).__name__} instead of {wanted}")
    if result.shape != torch.Size(shape):
        raise PluginError(f"{of} returned the shape {tuple(result.shape)} instead of {wanted}")
    if like is not None and (result.dtype, result.device) != (like.dtype, like.device):
        raise PluginError(
            f"{of} returned {result.dtype} on {result.device} instead of {like.dtype} on "
            f"{like.device}"
        )
    return result
