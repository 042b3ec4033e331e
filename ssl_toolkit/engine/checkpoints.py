"""Checkpoints of tensors and plain types, and the random states that belong in them."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ssl_toolkit.errors import ModelError
from ssl_toolkit.files import write_atomically

FORMAT = 1


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all; the previous one stands until then.

    Raises:
        OSError: the disk is full or the folder can't be written.
    """
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **state}, file))


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint under ``weights_only=True``: nothing in it can run code.

    Raises:
        ModelError: names the file, and whether it is missing, damaged, foreign or too new.
    """
    if not path.is_file():
        raise ModelError(f"{path}: there is no such checkpoint")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{path}: refused, it holds more than tensors and plain types") from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise ModelError(f"{path}: damaged or not a checkpoint ({type(error).__name__})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ModelError(f"{path}: not a checkpoint of this version of ssl-toolkit")
    return state


def random_states() -> dict[str, Any]:
    """Python's, numpy's and torch's global random states, as tensors and plain types."""
    version, internal, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` gave (CUDA's only where the number of devices agrees)."""
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
    torch.manual_seed(seed % 2**63)
