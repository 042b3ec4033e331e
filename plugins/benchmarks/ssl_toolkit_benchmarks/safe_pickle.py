"""Pickles that may hold numpy arrays and plain types, and nothing that runs."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ssl_toolkit import DataError


def read_array_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text; also one that Python 2 wrote.

    A pickle names functions that reading it calls. Here only those that rebuild numpy arrays,
    lists, dictionaries and sets are known; any other name ends the reading before it is called.

    Args:
        path: the file.

    Raises:
        DataError: it can't be read, is damaged, holds no dictionary, or names anything else.
    """
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}") from None
    except _Foreign as error:
        raise DataError(
            f"{path} names {error}, which is neither an array nor a plain type: it "
            "was not "
            "read and nothing of it was run; get the file from a source you trust"
        ) from None
    except Exception as error:  # damaged pickles meet almost any exception
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is no pickle of arrays, or is damaged ({reason})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dictionary")
    return {_text(key): value for key, value in content.items()}


_LONGEST = 10**7


class _Foreign(Exception):
    """A name that is not admitted."""


def _encode(text: str, encoding: str) -> bytes:
    """Stands for ``_codecs.encode``, by which Python 3 writes bytes in the old protocols."""
    if encoding not in ("latin1", "latin-1"):
        raise _Foreign(f"the encoding {encoding!r}")
    return text.encode("latin-1")


def _bounded(kind: Any) -> Any:
    """A plain type that is not made of a length alone, nor of something endless.

    A pickle of a few bytes could ask for a list of a range, or for an empty bytearray, of any
    length. What is whole in the pickle isn't made by a call of these.
    """

    def make(*content: Any) -> Any:
        first = content[0] if content else ()
        if isinstance(first, int) or (hasattr(first, "__len__") and len(first) > _LONGEST):
            raise _Foreign(f"a {kind.__name__} of {first!r:.50}")
        return kind(*content)

    return make


def _admitted() -> dict[tuple[str, str], Any]:
    # Numpy's own functions, found in what numpy itself writes, wherever it keeps them.
    array = np.zeros(1)
    from_buffer: Any = array.__reduce_ex__(5)[0]  # of the newer protocols
    known: dict[tuple[str, str], Any] = {}
    for core in ("numpy.core", "numpy._core"):
        known[f"{core}.multiarray", "_reconstruct"] = array.__reduce__()[0]
        known[f"{core}.multiarray", "scalar"] = array[0].__reduce__()[0]
        known[f"{core}.numeric", "_frombuffer"] = from_buffer
    known["numpy", "ndarray"] = np.ndarray
    known["numpy", "dtype"] = np.dtype
    known["_codecs", "encode"] = _encode
    known["collections", "OrderedDict"] = OrderedDict
    known["collections", "defaultdict"] = defaultdict
    for kind in (complex, int, range, slice, str):
        known["builtins", kind.__name__] = kind
    known |= {
        ("builtins", kind.__name__): _bounded(kind)
        for kind in (bytearray, dict, frozenset, list, set, tuple)
    }
    known |= {
        ("builtins", "xrange"): range,
        ("builtins", "long"): int,
        ("builtins", "unicode"): str,
    }
    return known


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the names of `_admitted` only."""

    known = _admitted()

    def find_class(self, module: str, name: str) -> Any:
        # The old protocols name Python 2's modules.
        module = "builtins" if module == "__builtin__" else module
        try:
            return self.known[module, name]
        except KeyError:
            raise _Foreign(f"{module}.{name}") from None


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
