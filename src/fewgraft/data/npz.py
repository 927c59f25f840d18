"""Arrays inside .npz files from anyone: large ones row by row, small ones whole.

Such a file can exceed the memory, or claim to: a few kilobytes of it can unpack to gigabytes.
"""

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewgraft.data.arrays import Shape, check_pictures, read_header
from fewgraft.data.pictures import Pixels
from fewgraft.errors import reading

LARGEST = 64 << 20  # bytes of an array that is read whole
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as NumPy packs


def npz_shape(path: Path, name: str) -> Shape:
    """Shape [n, height, width, channels] of the pictures `name`, uint8 in C order."""
    with _picture_file(path, name), _member(path, name) as (stream, size):
        return _read_header(stream, size)


def npz_rows(path: Path, name: str) -> Iterator[Pixels]:
    """The pictures `name`, one by one."""
    with _picture_file(path, name), _member(path, name) as (stream, size):
        shape = _read_header(stream, size)
        bytes_a_row = math.prod(shape[1:])
        for _ in range(shape[0]):
            row = stream.read(bytes_a_row)
            if len(row) != bytes_a_row:
                raise ValueError("it ends too early: it is truncated")
            yield np.frombuffer(row, np.uint8).reshape(shape[1:])


def npz_arrays(path: Path, names: list[str], dtype: DTypeLike) -> dict[str, NDArray[Any]]:
    """Small arrays of one type by name, for use inside `errors.reading`."""
    return {name: _small(path, name, np.dtype(dtype)) for name in names}


def _small(path: Path, name: str, dtype: "np.dtype[Any]") -> NDArray[Any]:
    with _member(path, name) as (stream, size):
        if size > LARGEST:
            raise ValueError(f"'{name}' has {size} bytes")
        shape = read_header(stream, dtype, size)
        return np.frombuffer(bytearray(stream.read()), dtype).reshape(shape)


def _picture_file(path: Path, name: str) -> contextlib.AbstractContextManager[None]:
    return reading(path, f"readable .npz file with pictures '{name}'")


@contextlib.contextmanager
def _member(path: Path, name: str) -> Iterator[tuple[IO[bytes], int]]:
    """The array's file inside the archive, and how many bytes it has unpacked."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type not in _PACKED:
            raise ValueError(f"'{name}' is packed in a way that NumPy does not use")
        with archive.open(member) as stream:
            yield stream, member.file_size


def _read_header(stream: IO[bytes], size: int) -> Shape:
    shape = read_header(stream, np.uint8, size)
    check_pictures(np.uint8, shape)
    return shape
