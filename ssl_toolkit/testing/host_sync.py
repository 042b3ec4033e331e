"""FileTree transfers from the device to the host, on a CPU as well, where they cost nothing.

On a CPU every tensor that comes from the marked ones counts as being on the device; those that
were made by factories or drawn from a generator count as being on the host. So a share that is
drawn on the host may be read, and a loss may not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ssl_toolkit.testing.rules import BrokenRuleError
from ssl_toolkit.torch_workarounds import TorchDispatchMode, tree_leaves

READS = {
    Tensor.tolist: "tolist()",
    Tensor.numpy: "numpy()",
    Tensor.cpu: "cpu()",
    Tensor.__array__: "a conversion to numpy",
    Tensor.__repr__: "printing",
}
"""What hands values to Python without an operation that could be seen below."""

WAITS = {
    "_local_scalar_dense": "item(), float(), int() or a condition",
    "nonzero": "nonzero()",
    "masked_select": "masked_select()",
    "equal": "torch.equal()",
    "_unique2": "unique()",
    "unique_consecutive": "unique_consecutive()",
    "unique_dim": "unique()",
    "bincount": "bincount()",
}
"""Operations that wait for the device to know a value or the size of their result."""


@contextmanager
def forbidden(device: torch.device, marked: Iterable[Tensor]) -> Iterator[None]:
    """Inside the block a transfer to the host is an error.

    Args:
        device: where the block computes.
        marked: tensors that count as being on the device, if that is the CPU.

    Raises:
        BrokenRuleError: there was one; says which.
    """
    if device.type == "cuda":
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        except RuntimeError as error:
            if "synchroniz" in str(error):
                raise BrokenRuleError(f"it waits for the device: {error}") from error
            raise
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return
    below = _Below(marked)
    with below, _Above(below):
        yield


class _Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which tensors come from the marked ones; sees every operation."""

    def __init__(self, marked: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: list[Tensor] = []  # so that no memory is given out a second time
        self._places: set[int] = set()
        self.exempt = 0
        for tensor in marked:
            self._mark(tensor)

    def holds(self, tensor: object) -> bool:
        return isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() in self._places

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = tree_leaves((args, kwargs))
        on_device = any(self.holds(value) for value in given)
        if on_device and not self.exempt and (message := self._waits(name, args, kwargs)):
            raise BrokenRuleError(f"the step waits for the device: {message}")
        made = func(*args, **kwargs)
        if on_device:
            for value in [*tree_leaves(made), *(args[:1] if name.endswith("_") else ())]:
                if isinstance(value, Tensor):
                    self._mark(value)
        return made

    def _waits(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if name in WAITS and self.holds(args[0]):
            return WAITS[name]
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            return "repeat_interleave() without output_size"
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [m for m in args[1] if self.holds(m) and m.dtype in (torch.bool, torch.uint8)]
            # One value for all places is a masked fill, which waits for nothing.
            if masks and (name == "index" or args[2].numel() != 1):
                return "indexing with a mask; multiply by it or use torch.where"
        return ""

    def _mark(self, tensor: Tensor) -> None:
        place = tensor.untyped_storage().data_ptr()
        if place:
            self._kept.append(tensor)
            self._places.add(place)


class _Above(TorchFunctionMode):
    """Sees what Python calls."""

    def __init__(self, below: _Below) -> None:
        super().__init__()
        self._below = below

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in READS and self._below.holds(args[0]):
            raise BrokenRuleError(f"the step moves values to the host: {READS[func]}")
        if func is torch.nn.functional.one_hot and len(args) + len(kwargs) > 1:
            # If the number of classes is given, their range is looked up on CPUs alone.
            self._below.exempt += 1
            try:
                return func(*args, **kwargs)
            finally:
                self._below.exempt -= 1
        return func(*args, **kwargs)
