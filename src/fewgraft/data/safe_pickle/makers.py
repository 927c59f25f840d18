"""What calls and states in a pickle stand for: one table of names, and descriptions of arrays."""

from collections.abc import Callable
from typing import Any

from fewgraft.data.safe_pickle.finish import array_of
from fewgraft.data.safe_pickle.inert import (
    OBJECT,
    Array,
    DamagedError,
    DType,
    Name,
    OldText,
    RefusedError,
    content_of,
    dtype_of,
    key_of,
    shape_of,
    short_text,
)
from fewgraft.data.safe_pickle.machine import Machine

NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
TEXTS = ("S", "U")  # followed by a length
ORDERS = ("<", ">", "=", "|")
LARGEST_TEXT = 1 << 20  # characters of one item of an array of text


def tell_dtype(dtype: DType, state: Any) -> None:
    """(version, byte order, subdtype, names, fields, size, alignment, flags, ...)."""
    if not isinstance(state, tuple) or len(state) < 5 or any(s is not None for s in state[2:5]):
        raise DamagedError("a dtype has parts")
    dtype.order = short_text(state[1])
    if dtype.order not in ORDERS:
        raise DamagedError(f"the byte order of a dtype is {dtype.order!r}")


def tell_array(array: Array, state: Any) -> None:
    """(version, shape, dtype, in Fortran's order, data); old files leave the version out."""
    if not isinstance(state, tuple) or len(state) not in (4, 5):
        raise DamagedError("an array has an unknown form")
    shape, dtype, fortran, data = state[-4:]
    array.shape, array.dtype = shape_of(shape), dtype_of(dtype)
    array.fortran, array.data = bool(fortran), content_of(data)


def _make_dtype(_: Machine, kind: Any, _align: Any = 0, _copy: Any = 1) -> DType:
    text = short_text(kind)
    order, bare = (text[0], text[1:]) if text[:1] in ORDERS else ("=", text)
    if bare.rstrip("0123456789") == OBJECT:
        return DType(OBJECT)
    length = bare[1:]
    if bare in NUMBERS or (
        bare[:1] in TEXTS and length.isdecimal() and int(length) <= LARGEST_TEXT
    ):
        return DType(bare, order)
    raise RefusedError(f"an array of {text!r}")


def _make_array(_: Machine, _kind: Any, _shape: Any, _typecode: Any) -> Array:
    """`_reconstruct(ndarray, (0,), b"b")`: the state comes later."""
    return Array()


def _make_from_buffer(
    _: Machine, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None
) -> Array:
    array = Array(shape_of(shape), dtype_of(dtype), short_text(order) == "F", content_of(data))
    if axes is not None:
        array.axes = shape_of(axes)
        if sorted(array.axes) != list(range(len(array.shape))):
            raise DamagedError("the axes of an array are not all there")
    return array


def _make_scalar(machine: Machine, dtype: Any, data: Any) -> Any:
    described, content = dtype_of(dtype), content_of(data)
    if described.kind == OBJECT or isinstance(content, list):
        raise RefusedError("a scalar that is an object")
    machine.spend(4 * content.nbytes)
    return array_of(Array((1,), described, data=content)).tolist()[0]


def _make_bytes(machine: Machine, text: Any = "", encoding: Any = "latin1") -> bytes:
    """What `_codecs.encode` does in pickles of protocol 2 and lower: bytes written as text."""
    if short_text(encoding) not in ("latin1", "latin-1"):
        raise DamagedError(f"it asks for the encoding {short_text(encoding)}")
    if isinstance(text, OldText):
        text = text.raw
    if not isinstance(text, str | bytes | memoryview):
        raise DamagedError("bytes are made of what is no text")
    machine.spend(len(text))
    return text.encode("latin1") if isinstance(text, str) else bytes(text)


def _make_set(machine: Machine, items: Any = ()) -> set[Any]:
    if not isinstance(items, list | tuple):
        raise DamagedError("a set is made of what is no list")
    machine.spend(100 * len(items))
    return {key_of(item) for item in items}


def _make_dict(machine: Machine, pairs: Any = ()) -> dict[Any, Any]:
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise DamagedError("a dictionary is made of what are no pairs")
    machine.spend(200 * len(pairs))
    return {key_of(key): value for key, value in pairs}


# NumPy 2 moved `numpy.core` to `numpy._core`; files written by either must load under either.
_CORES = ("numpy.core", "numpy._core")
_BUILTINS = ("builtins", "__builtin__")  # the second is Python 2's name, kept by old protocols
_Maker = Callable[..., Any]
# {name: (fewest arguments, most arguments, what its call stands for)}
MAKERS: dict[Name, tuple[int, int, _Maker]] = {
    Name("numpy", "dtype"): (1, 3, _make_dtype),
    Name("_codecs", "encode"): (1, 2, _make_bytes),
    Name("collections", "OrderedDict"): (0, 1, _make_dict),
    **{Name(f"{core}.multiarray", "_reconstruct"): (3, 3, _make_array) for core in _CORES},
    **{Name(f"{core}.multiarray", "scalar"): (2, 2, _make_scalar) for core in _CORES},
    **{Name(f"{core}.numeric", "_frombuffer"): (4, 5, _make_from_buffer) for core in _CORES},
    **{Name(module, "bytes"): (0, 2, _make_bytes) for module in _BUILTINS},
    **{Name(module, "bytearray"): (0, 2, _make_bytes) for module in _BUILTINS},
    **{Name(module, "set"): (0, 1, _make_set) for module in _BUILTINS},
    **{Name(module, "frozenset"): (0, 1, _make_set) for module in _BUILTINS},
}
ONLY_NAMES = {Name("numpy", "ndarray")}  # an argument of `_reconstruct`, never called
