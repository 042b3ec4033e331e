"""Checkpoints of tensors and plain types, and the random states that belong in them."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import re
import warnings
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch

from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import write_atomically

FORMAT = 2
_WITHOUT_CHECKSUM = 1

_MARK = b"sha256="
_TRAILER = len(_MARK) + 64


def save_checkpoint(path: Path, state: dict[str, Any], *, keep: int = 1) -> None:
    """Write a checkpoint atomically; the previous one is kept until then.

    The file is one that ``torch.load`` opens, followed by the SHA-256 of all before it.

    Args:
        path: such as ``last.pt``.
        state: tensors and plain types.
        keep: how many of the newest stay, this one included: ``last.pt``, ``last-1.pt``, …

    Raises:
        OSError: the disk is full or the folder can't be written.
    """

    def write(file: BinaryIO) -> None:
        hashed = _Hashed(file)
        torch.save({"format": FORMAT, **state}, cast(Any, hashed))
        if hashed.error is not None:
            raise hashed.error
        file.write(_MARK + hashed.content.hexdigest().encode())

    write_atomically(path, write, before=lambda: _shift(path, keep))


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint under ``weights_only=True``: nothing in it can run code.

    Raises:
        ModelError: names the file, and whether it is missing, damaged, foreign or too new.
    """
    try:
        return _load(path, device)
    except _DamagedError as error:
        raise ModelError(str(error)) from error


def load_newest(path: Path) -> tuple[dict[str, Any], Path, str]:
    """Return the newest intact checkpoint: ``last.pt``, else ``last-1.pt``, and so on.

    Args:
        path: the name of the newest.

    Returns:
        Its state on the CPU; its file; and a warning that names what is damaged and what is used,
        empty for none.

    Raises:
        ModelError: all are damaged or missing; or one of them is whole and refused.
    """
    faults: list[str] = []
    for candidate in kept_checkpoints(path) or [path]:
        try:
            state = _load(candidate, "cpu")
        except _DamagedError as error:
            faults.append(str(error))
            continue
        warning = f"{'; '.join(faults)}; resuming from the previous checkpoint, {candidate}"
        return state, candidate, warning if faults else ""
    raise ModelError("; ".join(faults))


def kept_checkpoints(path: Path) -> list[Path]:
    """Return the checkpoints that `save_checkpoint` kept under a name, newest first."""
    older = {}
    for found in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        number = found.stem.removeprefix(f"{path.stem}-")
        if number.isdecimal():
            older[int(number)] = found
    newest = [path] if path.exists() or older else []
    return newest + [older[number] for number in sorted(older)]


def verify_checksum(path: Path) -> bool | None:
    """Return True if a checkpoint is as it was written; None if it has no checksum.

    Raises:
        OSError: it can't be read.
    """
    content = hashlib.sha256()
    with path.open("rb") as file:
        left = max(0, os.fstat(file.fileno()).st_size - _TRAILER)
        while left and (block := file.read(min(left, 2**20))):
            content.update(block)
            left -= len(block)
        trailer = file.read(_TRAILER)
    if not trailer.startswith(_MARK):
        return None
    return trailer == _MARK + content.hexdigest().encode()


class _DamagedError(Exception):
    """Missing, cut or garbled; an older one may stand in for it."""


class _Hashed:
    """Hashes what is written to a file; keeps an error, which torch would replace by its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.content = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.content.update(data)
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _load(path: Path, device: torch.device | str) -> dict[str, Any]:
    if not path.is_file():
        raise _DamagedError(f"{path}: there is no such checkpoint")
    try:
        whole = verify_checksum(path)
    except OSError as error:
        raise _DamagedError(f"{path}: can't be read ({error.strerror})") from error
    if whole is False:
        raise _DamagedError(f"{path}: damaged, its checksum does not fit")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a foreign pickle protocol
            state = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        if foreign is None and not whole:
            raise _DamagedError(
                f"{path}: damaged or not a checkpoint; nothing of it was run"
            ) from error
        named = f"names {foreign[1]}" if foreign else "holds more than tensors and plain types"
        raise ModelError(f"{path}: refused, it {named}; nothing of it was run") from error
    except Exception as error:  # damaged files meet almost any exception
        reason = type(error).__name__
        raise _DamagedError(f"{path}: damaged or not a checkpoint ({reason})") from error
    if not isinstance(state, dict) or state.get("format") not in (FORMAT, _WITHOUT_CHECKSUM):
        raise ModelError(f"{path}: not a checkpoint of this version of ssl-toolkit")
    if whole is None and state["format"] != _WITHOUT_CHECKSUM:
        raise _DamagedError(f"{path}: damaged, its checksum is cut off")
    return state


def _shift(path: Path, keep: int) -> None:
    """Make room for a new file at `path`: at every moment all that are kept have a name."""
    for number in range(keep - 1, 0, -1):
        newer = path if number == 1 else _numbered(path, number - 1)
        if not newer.exists():
            continue
        if newer == path:
            # A second name first: were it renamed, a kill right now would leave no last.pt.
            link = path.with_name(f".{path.stem}.{os.getpid()}.partial-1{path.suffix}")
            link.unlink(missing_ok=True)
            try:
                os.link(path, link)
                newer = link
            except OSError:  # no hard links here
                pass
        os.replace(newer, _numbered(path, number))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def random_states() -> dict[str, Any]:
    """Return the global random states of Python, numpy and torch, as tensors and plain types."""
    version, internal, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Restore what `random_states` returned (CUDA's only if the number of devices is equal)."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def seed_everything(seed: int) -> None:
    """Seed the global generators, for the parts of torch that take no generator (dropout)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    seed_torch(seed)


def seed_torch(seed: int) -> None:
    """Seed torch's global generators, on the CPU and on the GPUs there are."""
    # torch.manual_seed takes 2 ms where there is no GPU: it keeps a traceback for one to come.
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed % 2**63)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed % 2**63)
