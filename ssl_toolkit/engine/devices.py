"""Devices and precision: as requested, or a clear error."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from ssl_toolkit.errors import ModelError

CHOICES = "auto, cpu, cuda, cuda:N or mps"


def choose_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU if there is one.

    Raises:
        ModelError: the name is unknown, or the device is not available. There is no fallback.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]{1,3})?", name):
        raise ModelError(f"--device {name}: unknown device; choose {CHOICES}")
    kind, _, index = name.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else int(kind == "cpu" or mps)
    if int(index or 0) >= count:
        here = f"{count} CUDA device(s)" if kind == "cuda" else f"no {kind} device"
        raise ModelError(f"--device {name}: torch sees {here} here; use --device auto or cpu")
    return torch.device(name)


def process_device(name: str, number: int, count: int) -> torch.device:
    """Return the device of one of several processes on a host, each of which has its own GPU.

    Args:
        name: device of the run, as for `choose_device`.
        number: index of the process on its host.
        count: number of processes on the host.

    Raises:
        ModelError: as `choose_device`, or there are fewer GPUs than processes.
    """
    device = choose_device(name)
    if device.type == "cpu" or count == 1:
        return device
    if device.type != "cuda" or device.index is not None:
        raise ModelError(
            f"--device {name}: one device for {count} processes; use --device cuda or cpu"
        )
    if count > torch.cuda.device_count():
        raise ModelError(
            f"--devices {count}: torch sees {torch.cuda.device_count()} CUDA device(s) here; use "
            "fewer, or --device cpu"
        )
    return torch.device("cuda", number)


def describe(device: torch.device) -> str:
    """Return a description of the device, for the record."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)" if device.type == "cpu" else str(device)


def choose_precision(name: str, device: torch.device) -> tuple[str, str]:
    """Return the precision to use, and a warning if it is not the requested one.

    ``auto`` is bf16 on GPUs with native bfloat16, fp32 elsewhere. A CPU without native
    bfloat16 is twice as slow under autocast (measured), and fp16 needs CUDA: both use fp32 there.
    """
    if name == "auto":
        cuda = device.type == "cuda"
        native = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if native else "fp32", ""
    if name == "fp32" or device.type == "cuda" or (device.type == "mps" and name == "bf16"):
        return name, ""
    if name == "bf16" and device.type == "cpu" and native_bfloat16():
        return name, ""
    return "fp32", f"--precision {name} is not faster on this {device.type} device; using fp32"


def native_bfloat16() -> bool:
    """Return True if this CPU computes in bfloat16 natively."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(
        bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
    )


def make_autocast(
    precision: str, device: torch.device
) -> Callable[[], AbstractContextManager[object]]:
    """Return a factory of autocast contexts for the precision."""
    if precision == "fp32":
        return nullcontext
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    return partial(torch.autocast, device.type, dtype=dtype)


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return loss scaling for fp16 on CUDA, which is disabled otherwise."""
    enabled = precision == "fp16" and device.type == "cuda"
    return torch.amp.GradScaler(device.type if enabled else "cpu", enabled=enabled)
