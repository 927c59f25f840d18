"""NumPy's .npy files from anyone: what the header promises is checked before memory is taken.

To be used inside `errors.reading`, which says of which file the problem is.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewgraft.data.pictures import MAX_PIXELS

Shape = tuple[int, ...]
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_header(stream: IO[bytes], dtype: DTypeLike, size: int) -> Shape:
    """The shape of an array of this type, in C order, that fills the rest of `size` bytes."""
    version = np.lib.format.read_magic(stream)
    if version not in _READERS:
        raise ValueError(f"version {version[0]}.{version[1]} of .npy is not read here")
    shape, in_fortran_order, found = _READERS[version](stream)
    wanted = np.dtype(dtype)
    if found != wanted or (in_fortran_order and len(shape) > 1):
        order = " in Fortran order" if in_fortran_order else ""
        raise ValueError(f"it holds {found} {shape}{order}, not {wanted}")
    there = size - stream.tell()
    if any(side < 0 for side in shape) or math.prod(shape) * wanted.itemsize != there:
        raise ValueError(f"it is damaged: it does not have the bytes of {wanted} {shape}")
    return shape


def npy_array(path: Path, dtype: DTypeLike, shape: Shape) -> NDArray[Any]:
    """An array of exactly this type and shape, in memory."""
    _check(path, dtype, shape)
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


def npy_map(
    path: Path, dtype: DTypeLike, shape: Shape, mode: Literal["r", "c"] = "r"
) -> NDArray[Any]:
    """An array of exactly this type and shape, as a memory map."""
    _check(path, dtype, shape)
    array: NDArray[Any] = np.lib.format.open_memmap(path, mode=mode)
    return array


def _check(path: Path, dtype: DTypeLike, shape: Shape) -> None:
    if path.exists() and not path.is_file():  # a pipe might never end
        raise ValueError("it is not a file")
    with path.open("rb") as stream:
        found = read_header(stream, dtype, path.stat().st_size)
    if found != shape:
        raise ValueError(f"it is damaged: its shape is {found}, not {shape}")


def whole_numbers(values: Iterable[object] | NDArray[Any]) -> NDArray[np.int64]:
    """Labels [n] as int64; text, fractions and lists in lists are no labels.

    NumPy would make all texts of a list as long as the longest, so it gets none to see.
    """
    if not isinstance(values, np.ndarray) and not all(isinstance(v, int) for v in values):
        raise ValueError("labels are not whole numbers")
    numbers = np.asarray(values)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(f"labels are {numbers.dtype} {numbers.shape}, not whole numbers [n]")
    if numbers.size and int(numbers.max()) >= 2**63:
        raise ValueError("a label is too large")
    return numbers.astype(np.int64)


def as_array(value: object) -> NDArray[Any]:
    """An array as it is; a list of who knows what could become one far larger than its parts."""
    if not isinstance(value, np.ndarray):
        raise ValueError(f"it holds a {type(value).__name__} where an array should be")
    return value


def check_pictures(dtype: DTypeLike, shape: Shape) -> None:
    """Refuse what is not pictures of bytes [n, height, width, channels] of a sane size."""
    fits = np.dtype(dtype) == np.uint8 and len(shape) == 4 and shape[3] in (1, 3, 4)
    if not fits or not 0 < shape[1] * shape[2] <= MAX_PIXELS:
        raise ValueError(f"{np.dtype(dtype)} {shape} is not uint8 [n, height, width, 3]")
