"""Read pickles of numpy arrays and plain types without running code."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit import DataError


def read_array_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle, with its keys as text; supports pickles of Python 2.

    A pickle names functions that are called when it is loaded. Only those that rebuild numpy
    arrays, lists, dictionaries and sets are allowed; any other name is an error before its call.

    Args:
        path: path to the pickle.

    Raises:
        DataError: the file can't be read, is corrupt, has no dictionary, or names anything else.
    """
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}") from None
    except _Foreign as error:
        raise DataError(
            f"{path} names {error}, which is neither an array nor a plain type; it was "
            "not loaded, and no code in it was run; get the file from a source you trust"
        ) from None
    except Exception as error:  # corrupt pickles raise almost any exception
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is not a pickle of arrays, or is corrupt ({reason})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dictionary")
    return {_text(key): value for key, value in content.items()}


_LONGEST = 10**7


class _Foreign(Exception):
    """A name that is not allowed."""


def _encode(text: str, encoding: str) -> bytes:
    """Replace ``_codecs.encode``, with which Python 3 writes bytes in old protocols."""
    if encoding not in ("latin1", "latin-1"):
        raise _Foreign(f"the encoding {encoding!r}")
    return text.encode("latin-1")


def _bounded(kind: Any) -> Any:
    """Return a constructor of a plain type that rejects integers and long arguments.

    A pickle of a few bytes could request a list of a range, or an empty bytearray, of any length.
    Objects whose content is in the pickle don't need these calls.
    """

    def make(*content: Any) -> Any:
        first = content[0] if content else ()
        if isinstance(first, int) or (hasattr(first, "__len__") and len(first) > _LONGEST):
            raise _Foreign(f"a {kind.__name__} of {first!r:.50}")
        return kind(*content)

    return make


def _allowed() -> dict[tuple[str, str], Any]:
    # Numpy's functions, taken from its pickles because their modules differ between versions.
    array = np.zeros(1)
    from_buffer: Any = array.__reduce_ex__(5)[0]  # of the newer protocols
    allowed: dict[tuple[str, str], Any] = {}
    for core in ("numpy.core", "numpy._core"):
        allowed[f"{core}.multiarray", "_reconstruct"] = array.__reduce__()[0]
        allowed[f"{core}.multiarray", "scalar"] = array[0].__reduce__()[0]
        allowed[f"{core}.numeric", "_frombuffer"] = from_buffer
    allowed["numpy", "ndarray"] = np.ndarray
    allowed["numpy", "dtype"] = np.dtype
    allowed["_codecs", "encode"] = _encode
    allowed["collections", "OrderedDict"] = OrderedDict
    allowed["collections", "defaultdict"] = defaultdict
    for kind in (complex, int, range, slice, str):
        allowed["builtins", kind.__name__] = kind
    allowed |= {
        ("builtins", kind.__name__): _bounded(kind)
        for kind in (bytearray, dict, frozenset, list, set, tuple)
    }
    allowed |= {
        ("builtins", "xrange"): range,
        ("builtins", "long"): int,
        ("builtins", "unicode"): str,
    }
    return allowed


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that resolves only the names of `_allowed`."""

    allowed = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        # The old protocols name Python 2's modules.
        module = "builtins" if module == "__builtin__" else module
        try:
            return self.allowed[module, name]
        except KeyError:
            raise _Foreign(f"{module}.{name}") from None


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
