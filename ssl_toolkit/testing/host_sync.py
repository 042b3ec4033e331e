"""Detect transfers from the device to the host, also on a CPU, where they cost nothing.

On a CPU, every tensor that is computed from the marked ones counts as being on the device. Tensors
from factories and generators count as being on the host, so that their values may be read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ssl_toolkit.testing.rules import RuleViolationError
from ssl_toolkit.torch_workarounds import TorchDispatchMode, tree_leaves

READS: dict[Any, str] = {
    Tensor.tolist: "tolist()",
    Tensor.numpy: "numpy()",
    Tensor.cpu: "cpu()",
    Tensor.__array__: "a conversion to numpy",
    Tensor.__repr__: "printing",
}
"""Functions that pass values to Python without an operation that reaches the dispatcher."""

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
"""Operations that wait for the device to compute a value or the size of their result."""


@contextmanager
def forbid(device: torch.device, marked: Iterable[Tensor]) -> Iterator[None]:
    """Raise an error if the block transfers values from the device to the host.

    Args:
        device: device of the block.
        marked: on a CPU, tensors that count as being on the device.

    Raises:
        RuleViolationError: names the operation.
    """
    if device.type == "cuda":
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the API is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        except RuntimeError as error:
            if "synchroniz" in str(error):
                raise RuleViolationError(f"host-device synchronization: {error}") from error
            raise
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return
    dispatcher = _DispatchMode(marked)
    with dispatcher, _FunctionMode(dispatcher):
        yield


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Track which tensors are computed from the marked ones."""

    def __init__(self, marked: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: list[Tensor] = []  # references, so that no memory is reused
        self._pointers: set[int] = set()
        self.exempt = 0
        for tensor in marked:
            self._mark(tensor)

    def holds(self, tensor: object) -> bool:
        return isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() in self._pointers

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        on_device = any(self.holds(value) for value in tree_leaves((args, kwargs)))
        if on_device and not self.exempt and (message := self._waits(name, args, kwargs)):
            raise RuleViolationError(f"host-device synchronization by {message}")
        result = func(*args, **kwargs)
        if on_device:
            for value in [*tree_leaves(result), *(args[:1] if name.endswith("_") else ())]:
                if isinstance(value, Tensor):
                    self._mark(value)
        return result

    def _waits(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if name in WAITS and self.holds(args[0]):
            return WAITS[name]
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            return "repeat_interleave() without output_size"
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [m for m in args[1] if self.holds(m) and m.dtype in (torch.bool, torch.uint8)]
            # A single value is a masked fill, which doesn't wait.
            if masks and (name == "index" or args[2].numel() != 1):
                return "indexing with a mask; multiply by it or use torch.where"
        return ""

    def _mark(self, tensor: Tensor) -> None:
        pointer = tensor.untyped_storage().data_ptr()
        if pointer:
            self._alive.append(tensor)
            self._pointers.add(pointer)


class _FunctionMode(TorchFunctionMode):
    """Detect the functions of `READS`."""

    def __init__(self, dispatcher: _DispatchMode) -> None:
        super().__init__()
        self._dispatcher = dispatcher

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in READS and self._dispatcher.holds(args[0]):
            raise RuleViolationError(f"host-device synchronization by {READS[func]}")
        if func is torch.nn.functional.one_hot and len(args) + len(kwargs) > 1:
            # With a number of classes, only CPUs check the range of the labels.
            self._dispatcher.exempt += 1
            try:
                return func(*args, **kwargs)
            finally:
                self._dispatcher.exempt -= 1
        return func(*args, **kwargs)
