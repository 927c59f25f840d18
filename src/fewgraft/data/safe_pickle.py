"""Foreign pickles, without the danger: plain containers and NumPy arrays, nothing else.

A pickle is a program: loading one from elsewhere can run anything. This loader resolves only the
few names that arrays and containers need and refuses every other by name, before it is called.
"""

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fewgraft.errors import FewgraftError

# NumPy 2 moved `numpy.core` to `numpy._core`; files written by either must load under either.
_CORES = ("numpy.core", "numpy._core")
_RECONSTRUCT, _SCALAR = np.empty(0).__reduce__()[0], np.int64(0).__reduce__()[0]
_BUILTINS = ("builtins", "__builtin__")  # the second is Python 2's name, kept by old protocols
_CONTAINERS = (set, frozenset, bytearray)
_FROM_BUFFER: Any = np.empty(0).__reduce_ex__(5)[0]


def _encode(text: str, encoding: str) -> bytes:
    """What `_codecs.encode` does in pickles of protocol 2 and lower: bytes written as text."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"asks for the encoding {encoding}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): collections.OrderedDict,
    **{(module, kind.__name__): kind for module in _BUILTINS for kind in _CONTAINERS},
    **{(f"{core}.multiarray", "_reconstruct"): _RECONSTRUCT for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): _SCALAR for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in _CORES},
}


class _RefusedError(Exception):
    """The pickle asks for something that is neither a container nor an array."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None


def load_plain_pickle(path: Path) -> Any:
    """The content of a pickle, with text keys even if Python 2 wrote it."""
    try:
        with path.open("rb") as file:
            return _with_text_keys(_PlainUnpickler(file, encoding="latin1").load())
    except _RefusedError as refused:
        raise FewgraftError(
            f"{path} asks for {refused} while it is loaded: refused",
            "Only plain containers and NumPy arrays are read from pickles. Do not open this file "
            "with anything else unless you know who made it.",
        ) from None
    except OSError as error:
        raise FewgraftError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise FewgraftError(f"{path} is not a readable pickle: {error}") from None


def _with_text_keys(content: Any) -> Any:
    """Python 2 wrote keys as bytes or as text, as it happened."""
    if isinstance(content, dict):
        return {_text(key): value for key, value in content.items()}
    return content


def _text(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key
